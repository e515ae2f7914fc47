"""What transformers makes of pictures with a tiny random model: the truth of the parity tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from vision_case import VisionCase, make_tokenizer

from support.llama4_output import complete_llama4_output
from support.undecided_routes import has_routers, route_changes

#: Prompts by the number of images in them; {} stands for one.
PROMPTS = (
    "w1 w2 w3 w4 w5 w6 w7 w8",
    "w1 {} w2 w3 w4",
    "w5 w1 {} w2 w3 w9 {} w4 w8 w6",
)
#: What comes after the prompt with one image, with an image of its own.
SECOND_TURN = "w30 w31 {} w7 w32"
REPLY_TOKENS = 8


@dataclass(frozen=True)
class Truth:
    """The ids and logits (T, V) of a prompt with its images.

    Rounding may send the `undecided` tokens (T) to other experts.
    """

    text: str
    images: tuple[Image.Image, ...]
    ids: list[int]
    logits: Tensor
    undecided: Tensor


@dataclass(frozen=True)
class VisionReference:
    """A saved model: `prompts` have 0, 1 and 2 images; `second` is the prompt with one, and more.

    `reply` follows the prompt with one image, greedily. `pixels` is what a tower is given of a
    picture.
    """

    case: VisionCase
    folder: Path
    prompts: tuple[Truth, ...]
    second: Truth
    reply: list[int]
    pixels: Callable[[Image.Image], Tensor]

    def show(self, width: int, height: int, seed: int = 0) -> Any:
        """A picture, or what this model takes in its place."""
        return (self.case.show or picture)(width, height, seed)


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """A picture with both gradients and noise in it."""
    random = np.random.default_rng(seed + width * 1000 + height)
    across = np.linspace(0, 200, width)[None, :, None]
    down = np.linspace(0, 55, height)[:, None, None]
    noise = random.integers(0, 40, (height, width, 3))
    numbers = (across + down + noise) * random.uniform(0.4, 1, 3)
    return Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).convert(mode)


@torch.no_grad()
def make_vision_reference(case: VisionCase, folder: Path) -> VisionReference:
    if case.reference is not None:
        return case.reference(case, folder)
    complete_llama4_output()
    torch.manual_seed(sum(map(ord, case.id)) + case.seed)
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = transformers.AutoModelForMultimodalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    randomize(model)
    processor = case.processor(make_tokenizer(case.specials))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    _as_published(folder)
    if case.adapt is not None:
        case.adapt(model)
    pictures = [picture(*size, seed=n) for n, size in enumerate(case.sizes)]
    texts = [f"{case.beginning} {text}".strip() for text in PROMPTS]
    prompts = [
        _truth(model, processor, case, text, pictures[:count]) for count, text in enumerate(texts)
    ]
    second = _truth(model, processor, case, f"{texts[1]} {SECOND_TURN}", [pictures[0], pictures[2]])
    inputs = _inputs(processor, case, texts[1], pictures[:1])
    made = model.generate(
        **inputs, max_new_tokens=REPLY_TOKENS, min_new_tokens=REPLY_TOKENS, do_sample=False
    )
    reply = made[0, inputs["input_ids"].shape[1] :].tolist()

    def pixels(image: Image.Image) -> Tensor:
        made = processor.image_processor(images=[image], return_tensors="pt")
        return made["pixel_values"] if case.unpack is None else case.unpack(made)

    return VisionReference(case, folder, tuple(prompts), second, reply, pixels)


def _as_published(folder: Path) -> None:
    """A folder as most published ones are: preprocessor_config.json is a file of its own."""
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text())
    images = settings.pop("image_processor", None)
    if images is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
        path.write_text(json.dumps(settings))


def _inputs(
    processor: Any, case: VisionCase, text: str, images: Sequence[Image.Image]
) -> dict[str, Any]:
    text = text.replace("{}", case.placeholder)
    inputs = processor(text=[text], images=list(images) or None, return_tensors="pt")
    return {key: value for key, value in inputs.items() if value is not None}


def _truth(
    model: Any, processor: Any, case: VisionCase, text: str, images: Sequence[Image.Image]
) -> Truth:
    inputs = _inputs(processor, case, text, images)
    ids = inputs["input_ids"][0].tolist()
    return Truth(text, tuple(images), ids, model(**inputs).logits[0], undecided(model, inputs))


@torch.no_grad()
def undecided(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Which tokens (T) of a prompt rounding may send to other experts."""
    if not has_routers(model):
        return torch.zeros(inputs["input_ids"].shape[1], dtype=torch.bool)
    return route_changes(model, lambda: model(**inputs)) > 0


def randomize(model: torch.nn.Module) -> None:
    """Norm weights, biases and gates start as ones and zeros, which would hide a missing one, and
    so do learned rows."""
    for parameter in model.parameters():
        if parameter.ndim <= 1 or (parameter == parameter.flatten()[0]).all():
            parameter += 0.3 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        bound = name.rpartition(".")[2]
        if bound in ("input_min", "output_min", "input_max", "output_max"):
            buffer.fill_(-0.9 if bound.endswith("min") else 1.1)
        elif bound in ("std_bias", "std_scale"):
            buffer.copy_(torch.randn_like(buffer) * 0.3 + 0.5)
