"""Write a random Llama of 1.1 billion parameters, so that speed can be measured without a hub.

    python tests/bench/random_llama.py FOLDER [--gguf Q4_K_M Q8_0 …]

The safetensors form is bf16. The GGUF forms are made by llama.cpp's own quantizer (through
llama-cpp-python) where it is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.byte_tokenizer import byte_tokenizer
from support.model_files import write_model

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCAB = 2048, 16, 32, 8, 8192, 32000
HEAD_DIM = HIDDEN // HEADS


def write_folder(folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCAB,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    write_model(folder, config, "BF16", std=None)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_gguf(folder: Path, quantizations: list[str]) -> None:
    """`model.bf16.gguf`, and one file for each of llama.cpp's quantizations."""
    dense = folder / "model.BF16.gguf"
    if not dense.exists():
        _write_dense_gguf(folder, dense)
    for name in quantizations:
        target = folder / f"model.{name}.gguf"
        if not target.exists():
            _quantize(dense, target, name)


def _write_dense_gguf(folder: Path, target: Path) -> None:
    import gguf
    from safetensors import safe_open

    writer = gguf.GGUFWriter(str(target), "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words += [f"▁w{i}" for i in range(VOCAB - len(words))]
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * 3 + [-float(i) for i in range(VOCAB - 3)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (VOCAB - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(name)
            gguf_name = names.get_name(name, try_suffixes=(".weight",))
            if tensor.dim() == 1:
                writer.add_tensor(gguf_name, tensor.float().numpy())
                continue
            for heads, suffix in ((HEADS, "q_proj.weight"), (KV_HEADS, "k_proj.weight")):
                if name.endswith(suffix):
                    tensor = _permuted(tensor, heads)
            writer.add_tensor(
                gguf_name,
                tensor.contiguous().view(torch.uint8).numpy(),
                raw_dtype=gguf.GGMLQuantizationType.BF16,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotary pairs side by side, as llama.cpp has the rows of q and k."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _quantize(dense: Path, target: Path, name: str) -> None:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    parameters.nthread = 2
    if llama_cpp.llama_model_quantize(str(dense).encode(), str(target).encode(), parameters):
        raise RuntimeError(f"llama.cpp could not write {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", nargs="*", default=[], metavar="QUANTIZATION")
    arguments = parser.parse_args()
    if not (arguments.folder / "model.safetensors").exists():
        write_folder(arguments.folder)
    if arguments.gguf:
        write_gguf(arguments.folder, arguments.gguf)


if __name__ == "__main__":
    main()
