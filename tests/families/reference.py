"""What a model of a parity test should compute: the reference of the tests' checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from case import Case
from torch import Tensor

REPLY_TOKENS = 16
SECOND_TURN_TOKENS = 12
#: Matrices that are never rounded: what experts and decays are chosen by, and convolutions.
KEPT_EXACT = (
    "gate.weight",
    "gate.wg.weight",
    "router.proj.weight",
    "router.weight",
    "correction_bias",
    "_coefs.weight",
    "f_a_proj.weight",
    "f_b_proj.weight",
    ".b_proj.weight",
    "weights_proj.weight",
    "in_proj_ba.weight",
    "in_proj_b.weight",
    "in_proj_a.weight",
    "conv1d.weight",
    "conv.weight",
    "A_log",
)


@dataclass(frozen=True)
class Reference(ABC):
    """A saved model and its outputs in float32.

    `prompt_logits` (48, V) follow each prompt token, `reply_logits` (16, V) precede each token of
    `reply`. The second turn feeds `second_turn`, which starts with the reply's last token, on top
    of the cache; `second_logits` follow each of its tokens. What few tests ask for is computed when
    it is asked for.
    """

    case: Case
    folder: Path
    #: transformers' config, or the keys of a config.json.
    config: Any
    prompt: list[int]
    prompt_logits: Tensor
    reply: list[int]
    reply_logits: Tensor
    second_turn: list[int]
    second_logits: Tensor

    @property
    def reply_without_cache(self) -> list[int]:
        return self.reply

    @property
    def steady_prompt(self) -> list[int]:
        """A prompt of 48 tokens for checks that round: no expert is chosen within rounding."""
        return self.prompt

    @property
    def steady_logits(self) -> Tensor:
        """Logits (48, V) after each token of the steady prompt."""
        return self.prompt_logits

    @property
    def steady_tokens(self) -> int | None:
        """So many first tokens of it are steady; None for all."""
        return None

    @property
    @abstractmethod
    def rounded_logits(self) -> Tensor:
        """Those of the steady prompt with matrices rounded to bf16, computed in float32."""
        raise NotImplementedError


def is_rounded(name: str, weight: Tensor) -> bool:
    """Whether the weight of that name is rounded where a model is bf16."""
    return weight.ndim > 1 and not name.endswith(KEPT_EXACT)
