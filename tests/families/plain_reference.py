"""What a model in plain torch computes for random weights: the truth of a `PlainCase`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from case import PROMPT_TOKENS, Plain, PlainCase
from reference import REPLY_TOKENS, SECOND_TURN_TOKENS, Reference, is_rounded
from safetensors.torch import save_file
from torch import Tensor

from support.model_files import tensor_shapes


@dataclass(frozen=True)
class PlainReference(Reference):
    """What a model in plain torch computes; a copy with rounded matrices computes the rest."""

    rounded: Plain

    @cached_property
    @torch.no_grad()
    def rounded_logits(self) -> Tensor:
        return self.rounded.logits(self.prompt).float()


class _Weights(Mapping[str, Tensor]):
    """Weights, and the names of those that nobody has asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors, self.unread = tensors, set(tensors)

    def __getitem__(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@torch.no_grad()
def make_plain_reference(case: PlainCase, folder: Path) -> PlainReference:
    """Saves a model with random weights in all tensors that the family's file names."""
    torch.manual_seed(sum(map(ord, case.id)))
    tensors = {name: _random(shape) for name, shape in tensor_shapes(case.config).items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(case.config))
    weights = _Weights(tensors)
    model = case.plain(weights, case.config)
    prompt = torch.randint(case.config["vocab_size"], (PROMPT_TOKENS,)).tolist()
    ids = list(prompt)
    while len(ids) < PROMPT_TOKENS + REPLY_TOKENS:
        ids.append(int(model.logits(ids)[-1].argmax()))
    assert not weights.unread, f"{case.plain.__name__} reads none of {sorted(weights.unread)}"
    reply = ids[PROMPT_TOKENS:]
    further = torch.randint(case.config["vocab_size"], (SECOND_TURN_TOKENS,)).tolist()
    logits = model.logits(ids + further).float()
    rounded = {n: t.bfloat16().float() if is_rounded(n, t) else t for n, t in tensors.items()}
    return PlainReference(
        case=case,
        folder=folder,
        config=case.config,
        prompt=prompt,
        prompt_logits=logits[:PROMPT_TOKENS],
        reply=reply,
        reply_logits=logits[PROMPT_TOKENS - 1 : -SECOND_TURN_TOKENS - 1],
        second_turn=[reply[-1], *further],
        second_logits=logits[-SECOND_TURN_TOKENS - 1 :],
        rounded=case.plain(rounded, case.config),
    )


def _random(shape: tuple[int, ...]) -> Tensor:
    """Matrices keep the scale of activations; norms and gains around one have an effect each."""
    values = torch.randn(shape)
    return values * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.5 * values
