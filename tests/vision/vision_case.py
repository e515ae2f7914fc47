"""A test case of a vision family: one tiny configuration, with its processor."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
    differs from the published one. `half_tolerance` bounds the error of logits in bf16.
    `seed` makes other random weights: none whose tokens are chosen by a hair. `show` makes of a
    width, a height and a seed what takes the place of a picture, for models that hear.
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
    half_tolerance: float = 5e-2
    seed: int = 0
    show: Callable[[int, int, int], Any] | None = field(default=None, hash=False)

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}"


class RestatedProcessor:
    """The texts that transformers' processor makes, restated: it needs torchvision.

    `image_processor` is a function or object of transformers' image processors; {} in a prompt
    stands for an image.
    """

    image_processor: Any

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def texts(self, made: dict[str, Any], images: Sequence[Any]) -> list[str]:
        """The text of each image, by what the image processor made; removes what models lack."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """preprocessor_config.json."""
        settings: dict[str, Any] = self.image_processor.to_dict()
        return settings

    def __call__(self, text: list[str], images: Any = None, **settings: Any) -> dict[str, Any]:
        prompt, inputs = text[0], {}
        if images:
            inputs = dict(self.image_processor(images=images, return_tensors="pt"))
            for image_text in self.texts(inputs, images):
                prompt = prompt.replace("{}", image_text, 1)
        return {**self.tokenizer([prompt], return_tensors="pt"), **inputs}

    def save_pretrained(self, folder: Any) -> None:
        self.tokenizer.save_pretrained(folder)
        settings = {"image_processor": self.settings()}
        (folder / "processor_config.json").write_text(json.dumps(settings))


def make_tokenizer(specials: tuple[str, ...]) -> Any:
    """Words `w0` to `w59`, then control tokens."""
    vocab = {f"w{number}": number for number in range(WORDS)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(specials))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0")
