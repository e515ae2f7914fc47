"""Writes models from their configurations: headers without weights, or random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mrs.demo
from mrs.architecture.family_registry import families
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.config.config import Config
from mrs.formats import FORMATS

DEMO = Path(mrs.demo.__file__).parent / "model"
#: Its draft head, and an index of both, which stand outside the package: the model's steps are too
#: short to gain by it.
DEMO_HEAD = Path(__file__).parents[1] / "demo" / "head"
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
SMALL_LLAMA: dict[str, Any] = {
    **LLAMA_70B,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 2,
    "num_attention_heads": 64,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "quantization_config": {"quant_method": "mxfp4"},
}


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a safetensors file of such a model holds."""
    family = families()[config["model_type"]]
    spec = family.read(Config({**family.defaults, **config}, "test"))
    names = {**SAFETENSORS, **family.safetensors}
    shapes: dict[str, tuple[int, ...]] = {}
    for parameter in list_parameters(spec, names):
        for piece in parameter.pieces:
            rows = parameter.rows if piece.rows is None else piece.rows.stop
            rows = max(rows, shapes.get(piece.tensor, (0,))[0])
            shapes[piece.tensor] = (rows, *parameter.shape[1:][-1:])
    return shapes


def header(
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str = "BF16",
    dtypes: Mapping[str, str] | None = None,
) -> tuple[bytes, int]:
    """A safetensors header, and the bytes of the whole file that it promises.

    `dtypes` are those of single tensors.
    """
    entries, offset = {}, 0
    for name, shape in shapes.items():
        own = (dtypes or {}).get(name, dtype)
        end = offset + FORMATS[own].size_bytes(shape)
        entries[name] = {"dtype": own, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + offset


def shards(config: Mapping[str, Any], count: int) -> Iterator[tuple[str, bytes, int]]:
    """Name, header and size of each of `count` files."""
    shapes = list(tensor_shapes(config).items())
    size = -(-len(shapes) // count)
    for index in range(count):
        name = f"model-{index + 1:05}-of-{count:05}.safetensors"
        yield name, *header(dict(shapes[index * size : (index + 1) * size]))


def write_headers(folder: Path, config: Mapping[str, Any], count: int = 1) -> Path:
    """A model's folder whose weights are holes: it can be planned and not run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, head, size_bytes in shards(config, count):
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(size_bytes)
    return folder


def write_few_bits(folder: Path, config: Mapping[str, Any]) -> Path:
    """Like `write_headers`, with the layers' matrices in the few bits that `config` names."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    method = config["quantization_config"]["quant_method"]
    for name, shape in tensor_shapes(config).items():
        if method == "fp8" and "_proj" in name:
            dtypes[name] = "F8_E4M3"
            shapes[f"{name}_scale_inv"] = tuple(-(-size // 128) for size in shape)
        if method == "mxfp4" and ".experts." in name:
            experts = config["num_local_experts"]
            shape = (experts, shape[0] // experts, *shape[1:])
        if method == "mxfp4" and name.endswith(("gate_up_proj", "down_proj")):
            shape = (*shape[:2], shape[2] // 32)
            shapes[f"{name}_scales"], dtypes[f"{name}_scales"] = shape, "U8"
            name, shape = f"{name}_blocks", (*shape, 16)
            dtypes[name] = "U8"
        shapes[name] = shape
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    head, size_bytes = header(shapes, dtypes=dtypes)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(head)
        file.truncate(size_bytes)
    return folder


def write_model(
    folder: Path, config: Mapping[str, Any], dtype: str = "F32", *, std: float | None = 0.02
) -> Path:
    """A model with normal random weights.

    Without `std` the matrices keep the scale of activations, and the norms' weights are ones.
    """
    import torch
    from safetensors.torch import save_file

    torch_dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[dtype]
    generator = torch.Generator().manual_seed(0)

    def weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if std is None and name.endswith("norm.weight"):
            return torch.ones(shape, dtype=torch_dtype)
        values = torch.randn(shape, generator=generator)
        return values.mul_(shape[-1] ** -0.5 if std is None else std).to(torch_dtype)

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: weight(name, shape) for name, shape in tensor_shapes(config).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_demo_like_model(folder: Path, family: str, **changes: Any) -> Path:
    """A small random model of a family with the demo model's tokenizer and chat template."""
    vocab_size = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    config = {**SMALL, "vocab_size": vocab_size, "model_type": family, **changes}
    write_model(folder, config, std=0.2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)
    return folder
