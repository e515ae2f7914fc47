"""Write the trained model as a Hugging Face folder and as one GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from .network import Shape
from .vocabulary import CHAT_TEMPLATE, END, END_OF_TEXT, PRE_TOKENIZER, SPECIALS, START

NAME = "mrs demo"
BOS_ID, EOS_ID = SPECIALS.index(END_OF_TEXT), SPECIALS.index(END)


def write_folder(
    folder: Path, shape: Shape, state: Mapping[str, Tensor], tokenizer: Tokenizer
) -> None:
    """config.json, model.safetensors (bf16) and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": BOS_ID}
    config = {**llama_config(shape, is_head_tied=True), **ids}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": END_OF_TEXT,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def llama_config(shape: Shape, *, is_head_tied: bool) -> dict[str, object]:
    """The fields of config.json without the ids of special tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": is_head_tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **shape.as_config(),
    }


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_gguf(path: Path, shape: Shape, state: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """One file: matrices in Q8_0, norms in F32, named and ordered as llama.cpp reads them."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, shape)
    _add_tokenizer(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.num_hidden_layers)
    for source, tensor in state.items():
        name = names.get_name(source, try_suffixes=(".weight",))
        if name is None:
            raise ValueError(f"no GGUF name for {source}")
        # The same rounding as in the safetensors file, so that both forms hold one model.
        values = _interleaved(source, tensor.to(torch.bfloat16).float().numpy(), shape)
        if values.ndim == 1:
            writer.add_tensor(name, values)
            continue
        quantized = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(name: str, values: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    """Rows of q and k reordered from rotary halves to the neighbouring pairs of the llama arch."""
    heads = {"q_proj": shape.num_attention_heads, "k_proj": shape.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            paired = values.reshape(count, 2, -1, values.shape[1])
            values = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)
    return values


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(NAME)
    writer.add_license("mit")
    # As `do_sample` of the safetensors folder: replies are greedy unless asked otherwise.
    writer.add_float32("general.sampling.temp", 0.0)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL for token in tokens
    ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_pad_token_id(BOS_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
