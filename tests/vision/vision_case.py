"""A test case of a vision family: one tiny configuration, with its processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = 60

#: The language model inside, as small as can be.
TEXT: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.08,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class VisionCase:
    """One configuration of a family.

    `config` is that of transformers' class; `specials` are control tokens, the first of which has
    the id `WORDS` and so on. `processor` makes transformers' processor around a tokenizer;
    `placeholder` stands for an image in the prompts that are given to it. `sizes` are
    (width, height) of the images, in order. `reference` makes the expected values of a family
    that transformers has no class for; `unpack` converts transformers' pixel values to our
    layout. Every prompt starts with `beginning`; `adapt` changes transformers' model where it
    differs from the published one.
    """

    family: str
    name: str
    config: dict[str, Any] = field(hash=False)
    processor: Callable[[Any], Any] = field(hash=False)
    specials: tuple[str, ...] = ("<image>",)
    placeholder: str = "<image>"
    sizes: tuple[tuple[int, int], ...] = ((37, 53), (90, 41), (24, 24))
    reference: Callable[[Any, Any], Any] | None = field(default=None, hash=False)
    unpack: Callable[[Any], Any] | None = field(default=None, hash=False)
    beginning: str = ""
    adapt: Callable[[Any], None] | None = field(default=None, hash=False)

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}"


def make_tokenizer(specials: tuple[str, ...]) -> Any:
    """Words `w0` to `w59`, then control tokens."""
    vocab = {f"w{number}": number for number in range(WORDS)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(specials))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0")
