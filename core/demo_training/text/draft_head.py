"""The draft head of the demo model: one more layer that guesses the tokens after the next one.

The parameter names are those of Qwen 3.5's heads (`mtp.*`), without the prefix.

Sources: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (2.2), for the head; Li et al.,
"EAGLE-3", 2025 (3.2), for training it on its own states.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .fit import Encoded, Recipe, batches, rate_factor
from .network import Attention, Layer, Llama, Norm, Shape, rotate

#: Drafts in training have so many tokens.
DRAFT_TOKENS = 4


@dataclass
class Read:
    """Keys and values (B, H, T, D) of one token of all drafts."""

    keys: Tensor
    values: Tensor


class DraftHead(nn.Module):
    """Reads a token and the state before it, and makes the state after it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.pre_fc_norm_embedding = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(shape)])
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, embedded: Tensor, states: Tensor, angles: tuple[Tensor, Tensor], reads: list[Read]
    ) -> Tensor:
        """The states (B, T, hidden) after the tokens at all positions.

        `embedded` are those tokens, and `states` those before them. A draft has read all tokens
        but its own with the target's states: these are the first of `reads`, to which the keys and
        values of this call are added; the others are those of the draft's earlier tokens.
        """
        (layer,) = (each for each in self.layers if isinstance(each, Layer))
        joined = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states))
        x = self.fc(torch.cat(joined, dim=-1))
        x = x + self._attended(layer.self_attn, layer.input_layernorm(x), angles, reads)
        result: Tensor = self.norm(x + layer.mlp(layer.post_attention_layernorm(x)))
        return result

    def _attended(
        self, attention: Attention, x: Tensor, angles: tuple[Tensor, Tensor], reads: list[Read]
    ) -> Tensor:
        """As `network.Attention`, with the keys that each token of a draft sees."""
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.shape.head_dim)
        queries, keys, values = (
            product(x).float().view(heads).transpose(1, 2)
            for product in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        queries, keys = rotate(queries, *angles), rotate(keys, *angles)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        reads.append(Read(keys, values))
        drafted = len(reads) - 1
        with torch.autocast("cpu", enabled=False):
            scale = self.shape.head_dim**-0.5
            # Of the target's positions, a draft sees those before its first token.
            is_seen = torch.ones(length, length, dtype=torch.bool).tril(-drafted)
            scores = (queries @ reads[0].keys.transpose(2, 3)).masked_fill(~is_seen, -1e9)
            own = [
                (queries * _shifted(read.keys, drafted - number)).sum(-1, keepdim=True)
                for number, read in enumerate(reads[1:], start=1)
            ]
            shares = (scale * torch.cat([scores, *own], dim=-1)).softmax(-1)
            out = shares[..., :length] @ reads[0].values
            for number, read in enumerate(reads[1:], start=1):
                share = shares[..., length + number - 1, None]
                out = out + share * _shifted(read.values, drafted - number)
        result: Tensor = attention.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return result


def _shifted(x: Tensor, positions: int) -> Tensor:
    """x (…, T, D) some positions later, after zeros."""
    return F.pad(x, (0, 0, positions, 0))[..., : x.shape[-2], :]


def fit_head(
    target: Llama, chats: list[Encoded], recipe: Recipe, say: Callable[[str], None]
) -> DraftHead:
    """A head for a target that stays as it is. Deterministic as `fit` is."""
    torch.manual_seed(recipe.seed)
    target.requires_grad_(False)
    head = DraftHead(target.shape)
    matrices = [each for each in head.parameters() if each.dim() == 2]
    norms = [each for each in head.parameters() if each.dim() == 1]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(norms, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    steps = batches(chats, recipe)
    started, agreed = time.monotonic(), torch.zeros(DRAFT_TOKENS)
    for step, (tokens, targets) in enumerate(steps, start=1):
        factor = rate_factor(step / (len(steps) + 1), recipe.warmup_share)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
        loss, same = _draft_loss(target, head, tokens, targets >= 0)
        agreed += same
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == len(steps):
            shares = " ".join(f"{share:.3f}" for share in agreed / ((step - 1) % 50 + 1))
            elapsed = time.monotonic() - started
            say(f"step {step}/{len(steps)}  agreeing by position {shares}  {elapsed:.0f} s")
            agreed.zero_()
    return head


def _draft_loss(
    target: Llama, head: DraftHead, tokens: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of drafts at all positions, and the share that agrees with the target by position.

    What counts is where the target's replies are: what it would say next is what is guessed.
    """
    length = tokens.shape[1]
    angles = target.cosines[:length], target.sines[:length]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            states = target(tokens)
            said = target.logits(states).argmax(-1)
            embedded = target.model.embed_tokens(tokens)
        reads: list[Read] = []
        losses, agreed = [], []
        for number in range(DRAFT_TOKENS):
            states = head(embedded, _shifted(states, 1), angles, reads)
            chosen = counts.clone()
            chosen[:, : number + 1] = False
            logits = target.logits(states[chosen]).float()
            losses.append(F.cross_entropy(logits, said[chosen]))
            agreed.append((logits.argmax(-1) == said[chosen]).float().mean())
    return torch.stack(losses).mean(), torch.stack(agreed).detach()
