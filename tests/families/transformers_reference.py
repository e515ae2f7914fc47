"""What transformers computes for a tiny random model: the truth of the parity tests."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from bailing_model import BailingMoeV2ForCausalLM
from case import PROMPT_TOKENS, Case
from muse_glimmer_model import MuseGlimmerForText
from reference import REPLY_TOKENS, SECOND_TURN_TOKENS, Reference, is_rounded
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.library_cache import read_on
from support.undecided_routes import has_routers, route_changes

#: What transformers takes for parts of vision models only.
OTHER_CLASSES = {
    "bailing_moe_v2": BailingMoeV2ForCausalLM,
    "mistral4": transformers.Mistral4ForCausalLM,
    "muse_glimmer_text": MuseGlimmerForText,
}

#: Where transformers begins with an empty state whenever it is given several tokens.
FORGETS = ("falcon_mamba", "jamba", "mamba")

#: Where no prompt of the first seed is steady enough.
STEADY_SEEDS = {
    "exaone_moe-period": 1, "jamba-default": 2, "kimi_linear-default": 4, "kimi_linear-odd": 1
}  # fmt: skip


@dataclass(frozen=True)
class TransformersReference(Reference):
    """What transformers computes; copies of the model that have seen no token compute the rest."""

    #: transformers' dynamic rope remembers the longest sequence that a model has seen.
    uncached: Any
    rounded: Any

    @cached_property
    @torch.no_grad()
    def reply_without_cache(self) -> list[int]:
        prompt = torch.tensor([self.prompt])
        made = self.uncached.generate(prompt, **_greedy(prompt), use_cache=False)
        return made[0, PROMPT_TOKENS:].tolist()

    @cached_property
    @torch.no_grad()
    def steady_prompt(self) -> list[int]:
        if not has_routers(self.rounded):
            return self.prompt
        with torch.random.fork_rng():
            torch.manual_seed(STEADY_SEEDS.get(self.case.id, 0))
            return _unambiguous_prompt(self.rounded)[0].tolist()

    @cached_property
    @torch.no_grad()
    def steady_logits(self) -> Tensor:
        if self.steady_prompt == self.prompt:
            return self.prompt_logits
        return self.uncached(torch.tensor([self.steady_prompt])).logits[0]

    @cached_property
    @torch.no_grad()
    def rounded_logits(self) -> Tensor:
        return self.rounded(torch.tensor([self.steady_prompt])).logits[0]

    @property
    def steady_tokens(self) -> int | None:
        """An indexer chooses the tokens of later positions by cached keys, which bf16 rounds."""
        return getattr(self.config, "index_topk", None)


def _greedy(prompt: Tensor) -> dict[str, Any]:
    return {
        "max_new_tokens": REPLY_TOKENS,
        "min_new_tokens": REPLY_TOKENS,
        "do_sample": False,
        "attention_mask": torch.ones_like(prompt),
    }


@torch.no_grad()
def make_reference(case: Case, folder: Path) -> TransformersReference:
    torch.manual_seed(sum(map(ord, case.id)))
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = new_model(case, config)
    model = model.float().eval()
    _randomize_vectors(model)
    save(model, folder)
    uncached, rounded = deepcopy(model), deepcopy(model)
    for name, parameter in rounded.named_parameters():
        if is_rounded(name, parameter):
            parameter.copy_(parameter.bfloat16())
    prompt = torch.randint(config.vocab_size, (1, PROMPT_TOKENS))
    prompt_logits = model(prompt).logits[0]
    made = model.generate(
        prompt, **_greedy(prompt), return_dict_in_generate=True, output_logits=True
    )
    reply = made.sequences[0, PROMPT_TOKENS:].tolist()
    second_turn = [reply[-1], *torch.randint(config.vocab_size, (SECOND_TURN_TOKENS,)).tolist()]
    second_logits = _read_second_turn(model, second_turn, made, case.family in FORGETS)
    return TransformersReference(
        case=case,
        folder=folder,
        config=config,
        prompt=prompt[0].tolist(),
        prompt_logits=prompt_logits,
        reply=reply,
        reply_logits=torch.cat(made.logits),
        second_turn=second_turn,
        second_logits=second_logits,
        uncached=uncached,
        rounded=rounded,
    )


def _read_second_turn(model: Any, ids: list[int], before: Any, forgets: bool) -> Tensor:
    """The logits (13, V), with positions for models that take them: Bamba else begins at 0 again.

    One that `forgets` its state before several tokens gets one after another.
    """
    takes_positions = "position_ids" in signature(model.forward).parameters
    step, logits = 1 if forgets else len(ids), []
    for start in range(0, len(ids), step):
        first = PROMPT_TOKENS + REPLY_TOKENS - 1 + start
        positions = torch.arange(first, first + step)[None]
        places = {"position_ids": positions} if takes_positions else {}
        before = read_on(model, torch.tensor([ids[start : start + step]]), before, **places)
        logits.append(before.logits[0])
    return torch.cat(logits)


def save(model: Any, folder: Path) -> None:
    """As published files have it: transformers 5.24 cuts OLMo Hybrid's convolutions in thirds."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors, parts = load_file(file), ("q", "k", "v")
    for name in [name for name in tensors if name.endswith("linear_attn.q_conv1d.weight")]:
        module = name.removesuffix("q_conv1d.weight")
        convolutions = torch.cat([tensors[f"{module}{part}_conv1d.weight"] for part in parts])
        rows = [len(tensors[f"{module}{part}_proj.weight"]) for part in parts]
        for part, own in zip(parts, convolutions.split(rows), strict=True):
            tensors[f"{module}{part}_conv1d.weight"] = own.contiguous()
        save_file(tensors, file, {"format": "pt"})


def new_model(case: Case, config: transformers.PreTrainedConfig) -> Any:
    # transformers 5.24 adds Falcon's ALiBi twice in its eager attention, and once in its default.
    attention = "sdpa" if getattr(config, "alibi", False) is True else "eager"
    if case.family in OTHER_CLASSES:
        return OTHER_CLASSES[case.family]._from_config(config, attn_implementation=attention)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def _unambiguous_prompt(model: torch.nn.Module) -> Tensor:
    """A prompt (1, 48) whose experts stay the same when what they are chosen by changes a little.

    Where two experts are nearly as good for one of its tokens, rounding would swap them.
    """
    prompts = torch.randint(model.config.vocab_size, (64, PROMPT_TOKENS))
    changes = route_changes(model, lambda: model(prompts)).view(len(prompts), -1).sum(-1)
    best = int(changes.argmin())
    return prompts[best : best + 1]


def _randomize_vectors(model: torch.nn.Module) -> None:
    """Norm weights and biases start as ones and zeros, which would hide a missing one.

    The biases of experts are stacked. Some matrices start so, too: norms of each head.
    """
    kinds = ("correction_bias", "expert_bias")
    corrections = (buffer for name, buffer in model.named_buffers() if name.endswith(kinds))
    endings = ("proj_bias", "correction_bias")
    stacked = {p for name, p in model.named_parameters() if name.endswith(endings)}
    for parameter in (*model.parameters(), *corrections):
        if parameter.ndim == 1 or parameter in stacked or parameter.min() == parameter.max():
            parameter += 0.3 * torch.randn_like(parameter)
