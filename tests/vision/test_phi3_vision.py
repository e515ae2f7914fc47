"""Phi-3 Vision beside its published recipe, written out with transformers' CLIP and Phi-3.

Transformers has no such class: here the tower and the language model are its, and what lies
between is a plain restatement, one square and one row at a time.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from vision_case import TEXT, WORDS, make_tokenizer
from vision_reference import picture
from vision_running import Conversation, Seeing, difference, load_seeing

from mrs.families.vision.layouts import CLIP_MEAN, CLIP_STD

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
SIZES = [(37, 53), (53, 37), (7, 200), (201, 6), (64, 64), (333, 127), (1, 1)]


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
    image = image.convert("RGB")
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


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("phi3_v")
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


@pytest.fixture(scope="module")
def seeing(recipe: Recipe) -> Seeing:
    return load_seeing(recipe.folder)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels(seeing: Seeing, size: tuple[int, int]) -> None:
    image = picture(*size)
    (ours,) = seeing.prepare([image])
    theirs, rows, columns = published_pixels(image)
    assert ours.shape.grid[:2] == (rows, columns)
    assert ours.shape.rows == (rows * columns + 1) * 4 + 1 + (rows + 1) * 2
    assert float((ours.pixels - theirs).abs().max()) * 255 * max(CLIP_STD) <= 1
    assert ours.shape.rows <= seeing.vision.layout.largest(max(size)).rows


@pytest.mark.parametrize("chunk_tokens", [512, 7])
@torch.no_grad()
def test_logits(recipe: Recipe, seeing: Seeing, chunk_tokens: int) -> None:
    images = [picture(*size, seed=n) for n, size in enumerate(((37, 53), (90, 41)))]
    ids, shown = seeing.shown("w5 w1 {} w2 w3 w9 {} w4 w8 w6", images)
    logits = Conversation(seeing, chunk_tokens).feed(ids, shown)
    embedded = recipe.text.model.embed_tokens(torch.tensor(ids))
    places = torch.tensor([at for at, token in enumerate(ids) if token == WORDS])
    embedded[places] = torch.cat([recipe.features(*published_pixels(each)) for each in images])
    expected = recipe.text(inputs_embeds=embedded[None]).logits[0]
    assert difference(logits, expected) < 1e-4


def test_the_published_model() -> None:
    """Phi-3.5 Vision: 4 crops, 144 features each, and the sizes that its card tells."""
    from mrs.families.config import Config
    from mrs.families.spec import ModelSpec
    from mrs.families.vision.family import VisionConfigs
    from mrs.families.vision.phi3_v import FAMILY

    where = "phi-3.5-vision"
    images = Config({**FAMILY.image_defaults, "num_crops": 4}, where)
    configs = VisionConfigs(Config({}, where), Config(FAMILY.tower_defaults, where), images)
    text = ModelSpec("phi3", 32_064, 3072, (), None, False, 131_072)  # type: ignore[arg-type]
    layout = FAMILY.read(configs, text).layout
    assert layout.shape(336, 336).rows == (4 + 1) * 144 + 1 + (2 + 1) * 12
    assert layout.shape(336, 1344).rows == (4 + 1) * 144 + 1 + (1 + 1) * 12
    assert layout.shape(336, 1344).pixels == (5, 3, 336, 336)
