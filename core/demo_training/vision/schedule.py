"""How fast to learn: Muon for the matrices of the layers, AdamW for all else, a rate that falls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from demo_training.text.fit import rate_factor

from .muon import Muon

_REPORT_EVERY = 100
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Course:
    """How much and how fast to train.

    `count` is how many images or dialogues; `batch` is how many images, or tokens, of them
    make one step.
    """

    count: int
    batch: int
    matrix_rate: float
    other_rate: float
    warmup_share: float = 0.03
    seed: int = 1234


class Optimizers:
    """Both optimizers, stepped together."""

    def __init__(self, inner: nn.Module, trained: tuple[nn.Module, ...], course: Course) -> None:
        matrices = [p for p in inner.parameters() if p.dim() >= 2]
        others = [
            p for m in trained for p in m.parameters() if not any(p is other for other in matrices)
        ]
        self.course = course
        self.factor = 1.0
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
        self.losses: list[float] = []

    def steps(self, items: Sequence[_Item], say: Callable[[str], None]) -> Iterator[_Item]:
        """Each of `items` at the rates of its time; reports now and then."""
        started = time.monotonic()
        for done, item in enumerate(items, start=1):
            self.factor = rate_factor(done / (len(items) + 1), self.course.warmup_share)
            yield item
            if len(self.losses) == _REPORT_EVERY or done == len(items):
                mean, elapsed = sum(self.losses) / len(self.losses), time.monotonic() - started
                say(f"step {done}/{len(items)}  loss {mean:.4f}  {elapsed:.0f} s")
                self.losses = []

    def learn(self, loss: Tensor) -> None:
        """One step down `loss`."""
        torch.autograd.backward(loss)
        self.muon.step(self.factor * self.course.matrix_rate)
        self.adam.param_groups[0]["lr"] = self.factor * self.course.other_rate
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.losses.append(loss.item())
