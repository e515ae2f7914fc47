"""Phi-3 Vision beside its published recipe, written out with transformers' CLIP and Phi-3.

Transformers has no such class: here the tower and the language model are its, and what lies
between is a plain restatement, one square and one row at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from vision_case import TEXT, WORDS, VisionCase, make_tokenizer
from vision_reference import PROMPTS, REPLY_TOKENS, SECOND_TURN, Truth, VisionReference, picture

from mrs.architecture.vision.image_layouts import CLIP_MEAN, CLIP_STD

EDGE, PATCH, WIDTH, CROPS = 24, 6, 32, 5
TOWER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": EDGE,
    "patch_size": PATCH,
    "initializer_range": 0.08,
}
START = "model.vision_embed_tokens."


@dataclass
class Recipe:
    """The published model, made of small parts."""

    folder: Path
    tower: Any
    text: Any
    up: torch.nn.Linear
    down: torch.nn.Linear
    newline: Tensor
    between: Tensor

    def truth(self, text: str, images: Sequence[Image.Image], reply: Sequence[int] = ()) -> Truth:
        """A prompt and what of its reply there is, with each picture in its place."""
        given = text
        features = [self.features(*published_pixels(image)) for image in images]
        for rows in features:
            text = text.replace("{}", "<|image|>" * len(rows), 1)
        ids = [*make_tokenizer(("<|image|>",))(text).input_ids, *reply]
        embedded = self.text.model.embed_tokens(torch.tensor(ids))
        if features:
            places = [at for at, token in enumerate(ids) if token == WORDS]
            embedded[torch.tensor(places)] = torch.cat(features)
        logits = self.text(inputs_embeds=embedded[None]).logits[0]
        undecided = torch.zeros(len(ids), dtype=torch.bool)
        return Truth(given, tuple(images), ids, logits, undecided)

    def features(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """pixels (1 + crops, 3, 24, 24)."""
        hidden = self.tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
        lines = [*self._lines(hidden[1:], rows, columns), self.between[None]]
        lines += self._lines(hidden[:1], 1, 1)
        return self.down(torch.nn.functional.gelu(self.up(torch.cat(lines))))

    def _lines(self, views: Tensor, rows: int, columns: int) -> list[Tensor]:
        side, half = EDGE // PATCH, EDGE // PATCH // 2
        lines = []
        for row in range(rows * half):
            for column in range(columns * half):
                view = views[(row // half) * columns + column // half]
                y, x = 2 * (row % half), 2 * (column % half)
                four = [(y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1)]
                lines.append(torch.cat([view[a * side + b] for a, b in four])[None])
            lines.append(self.newline[None])
        return lines


def published_pixels(image: Image.Image) -> tuple[Tensor, int, int]:
    """The processor's steps, on numbers: (1 + crops, 3, 24, 24), rows, columns."""
    canvas = Image.new("RGBA", image.size, (255, 255, 255, 255))
    image = Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")
    turned = image.width < image.height
    if turned:
        image = image.transpose(Image.Transpose.TRANSPOSE)
    ratio, scale = image.width / image.height, 1
    while scale * math.ceil(scale / ratio) <= CROPS:
        scale += 1
    width = (scale - 1) * EDGE
    height = max(1, int(width / ratio))
    numbers = np.array(image.resize((width, height), Image.Resampling.BILINEAR))
    missing = math.ceil(height / EDGE) * EDGE - height
    top = missing // 2
    numbers = np.pad(numbers, ((top, missing - top), (0, 0), (0, 0)), constant_values=255)
    if turned:
        numbers = numbers.transpose(1, 0, 2)
    scaled = (numbers / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
    tensor = torch.tensor(scaled).permute(2, 0, 1).float()
    whole = torch.nn.functional.interpolate(tensor[None], size=(EDGE, EDGE), mode="bicubic")[0]
    rows, columns = tensor.shape[1] // EDGE, tensor.shape[2] // EDGE
    crops = [
        tensor[:, y * EDGE : (y + 1) * EDGE, x * EDGE : (x + 1) * EDGE]
        for y in range(rows)
        for x in range(columns)
    ]
    return torch.stack([whole, *crops]), rows, columns


def make_recipe(folder: Path) -> Recipe:
    torch.manual_seed(3)
    config = transformers.Phi3Config(**TEXT)
    text = transformers.Phi3ForCausalLM(config).eval()
    tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**TOWER)).eval()
    hidden = TEXT["hidden_size"]
    up, down = torch.nn.Linear(4 * WIDTH, hidden), torch.nn.Linear(hidden, hidden)
    newline, between = torch.randn(4 * WIDTH), torch.randn(4 * WIDTH)
    tensors = {name: tensor.clone() for name, tensor in text.state_dict().items()}
    prefix = f"{START}img_processor.vision_model."
    for name, tensor in tower.state_dict().items():
        tensors[prefix + name.removeprefix("vision_model.")] = tensor.clone()
    for number, layer in ((0, up), (2, down)):
        tensors[f"{START}img_projection.{number}.weight"] = layer.weight.detach().clone()
        tensors[f"{START}img_projection.{number}.bias"] = layer.bias.detach().clone()
    tensors[f"{START}sub_GN"] = newline.view(1, 1, 1, -1).clone()
    tensors[f"{START}glb_GN"] = between.view(1, 1, -1).clone()
    save_file(tensors, folder / "model.safetensors")
    settings = config.to_dict() | {
        "model_type": "phi3_v",
        "image_token_id": WORDS,
        "img_processor": TOWER | {"image_dim_out": WIDTH, "name": "clip_vision_model"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps({"num_crops": CROPS}))
    make_tokenizer(("<|image|>",)).save_pretrained(folder)
    return Recipe(folder, tower, text, up, down, newline, between)


@torch.no_grad()
def make_reference(case: VisionCase, folder: Path) -> VisionReference:
    recipe = make_recipe(folder)
    pictures = [picture(*size, seed=n) for n, size in enumerate(case.sizes)]
    prompts = [recipe.truth(text, pictures[:count]) for count, text in enumerate(PROMPTS)]
    second = recipe.truth(f"{PROMPTS[1]} {SECOND_TURN}", [pictures[0], pictures[2]])
    reply: list[int] = []
    while len(reply) < REPLY_TOKENS:
        after = recipe.truth(prompts[1].text, pictures[:1], reply)
        reply.append(int(after.logits[-1].argmax()))
    return VisionReference(
        case, folder, tuple(prompts), second, reply, lambda image: published_pixels(image)[0]
    )


PHI3_V = (
    VisionCase(
        "phi3_v",
        "published",
        {},
        make_tokenizer,
        specials=("<|image|>",),
        placeholder="<|image_1|>",
        reference=make_reference,
    ),
)
