"""A compact Llama in plain torch: enough to train the demo model, no more.

The parameter names are those of Hugging Face's `LlamaForCausalLM`, so that `state_dict()` is the
checkpoint. The head is tied to the embedding.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters, under the names that config.json gives them.

    The inputs of all matrices are 256 wide, so that every block quantization applies.
    """

    vocab_size: int = 1280
    hidden_size: int = 256
    intermediate_size: int = 256
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def as_config(self) -> dict[str, object]:
        """The fields as config.json has them."""
        return asdict(self)


def rotation(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, both (length, head_dim), halves repeated."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(length, dtype=torch.float32)[:, None] / shape.rope_theta**exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding in the half-split convention; `x` is (B, H, T, D)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class Norm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    """Causal attention with grouped key and value heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.num_attention_heads * shape.head_dim
        grouped = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, grouped, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, grouped, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.shape.head_dim)
        q = self.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(heads).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        # On a CPU this kernel is twice as fast in float32, also where autocast prefers bf16.
        with torch.autocast("cpu", enabled=False):
            out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
        result: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return result


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Body(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Embeddings (B, T, hidden) to last hidden states of that shape."""
        for layer in self.layers:
            x = layer(x, cosines, sines)
        result: Tensor = self.norm(x)
        return result


class Llama(nn.Module):
    """Token ids (B, T) to last hidden states (B, T, hidden); `logits` applies the tied head."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        cosines, sines = rotation(shape, shape.max_position_embeddings)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.initialize()

    def initialize(self) -> None:
        """Small normal weights; the matrices that write into the residual stream smaller still."""
        residual = 0.02 / (2 * self.shape.num_hidden_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual if into_residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        embedded = self.model.embed_tokens(tokens)
        result: Tensor = self.model(embedded, self.cosines[:length], self.sines[:length])
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, hidden) to (…, vocabulary)."""
        return F.linear(hidden, self.model.embed_tokens.weight)
