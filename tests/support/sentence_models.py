"""Tiny random models as folders of sentence-transformers: weights, a tokenizer, and modules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from mrs.request import ModelSource, RunRequest
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?:|"
_WORDS = ("the", "a", "cache", "key", "value", "token", "text", "yes", "no", "##s", "##ing", "##ed")
VOCABULARY = (*_SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *_WORDS)
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.08,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "cls_token_id": None,
    "sep_token_id": None,
}


def write_model(folder: Path, family: str, kind: str = "AutoModel", **changes: Any) -> Any:
    """Write a random model of a class of transformers with its tokenizer; returns the model."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **changes})
    config.architectures = None
    model = getattr(transformers, kind).from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path, around: tuple[str, str] = ("[CLS]", "[SEP]")) -> None:
    """A WordPiece tokenizer that puts a token before and one after a text."""
    vocabulary = {token: index for index, token in enumerate(VOCABULARY)}
    made = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    first, last = around
    ids = [(token, vocabulary[token]) for token in around]
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1", special_tokens=ids
    )
    made.add_special_tokens(list(_SPECIAL))
    made.save(str(folder / "tokenizer.json"))
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def write_modules(
    folder: Path,
    pooling: Mapping[str, Any],
    *,
    dense: Sequence[tuple[torch.nn.Linear, str]] = (),
    normalize: bool = True,
    prompts: Mapping[str, str] | None = None,
    default_prompt: str | None = None,
    max_tokens: int | None = None,
) -> None:
    """The files of sentence-transformers; `dense` are layers with their activations' names."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    modules = []
    for index, kind in enumerate(kinds):
        path = f"{index}_{kind}" if index else ""
        modules.append(
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
        )
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    for index, (linear, activation) in enumerate(dense, 2):
        inside = folder / f"{index}_Dense"
        save_file(
            {f"linear.{k}": v for k, v in linear.state_dict().items()}, inside / "model.safetensors"
        )
        _write(
            inside / "config.json",
            {
                "in_features": linear.in_features,
                "out_features": linear.out_features,
                "bias": linear.bias is not None,
                "activation_function": activation,
            },
        )
    if prompts is not None:
        settings = {"prompts": prompts, "default_prompt_name": default_prompt}
        _write(folder / "config_sentence_transformers.json", settings)
    if max_tokens is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens})


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def token_ids(folder: Path, *texts: str) -> tuple[list[int], list[int]]:
    """Ids and types of a text, or of two, by the tokenizers library."""
    found = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*texts)
    return found.ids, found.type_ids


def load(folder: Path) -> LoadedModel:
    """The model in a folder, as a run loads it, in float32 on the CPU."""
    source = ModelSource(str(folder), "safetensors")
    return ModelLoader(RunRequest(source, cpu=True, dtype="f32", calibration=False)).load()
