"""GLM 5: DeepSeek V3.2 with other sizes, whose indexer has adjacent rotary pairs.

In GLM 5.2, most layers attend to the tokens that an earlier one has chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, of_layers
from mrs.errors import NotReadable, Unsupported
from mrs.families import deepseek_v32
from mrs.families.deepseek_v2 import read_deepseek
from mrs.layers.latent_attention.config import read_indexed_attention
from mrs.layers.latent_attention.spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
    LatentAttention,
)

_SHORT = {"F": "full", "S": "shared"}


def read(config: Config) -> ModelSpec:
    indexed = read_indexed_attention(config, interleaved=True)
    return read_deepseek(config, "glm_moe_dsa", _lending_and_borrowing(config, indexed))


def _lending_and_borrowing(config: Config, indexed: IndexedAttention) -> list[LatentAttention]:
    """The attention of each layer; layers with an indexer have `indexed`."""
    kinds = _kinds(config)
    if kinds[0] != "full":
        raise NotReadable("the first layer has no indexer", where=config.where)
    common = {field.name: getattr(indexed, field.name) for field in fields(LatentAttention)}
    borrowed = BorrowedChoiceAttention(**common, top_k=indexed.indexer.top_k)
    lending = replace(indexed, lends_choice=True)
    return [
        borrowed if kind == "shared" else lending if after == "shared" else indexed
        for kind, after in zip(kinds, [*kinds[1:], "full"], strict=True)
    ]


def _kinds(config: Config) -> Sequence[str]:
    """`full` or `shared` for each layer: a list, letters, or every layer of an interval."""
    if config.has("indexer_types"):
        kinds = list(of_layers(config, "indexer_types"))
    elif isinstance(pattern := config.values.get("index_topk_pattern"), str):
        letters = config.changed({"index_topk_pattern": list(pattern)})
        kinds = [_SHORT.get(letter, letter) for letter in of_layers(letters, "index_topk_pattern")]
    elif pattern is not None:
        kinds = list(of_layers(config, "index_topk_pattern"))
    else:
        step = max(config.integer("index_topk_freq", 1), 1)
        skipped = config.integer("index_skip_topk_offset", 2)
        layers = range(layer_count(config))
        kinds = ["shared" if max(n - skipped + 1, 0) % step else "full" for n in layers]
    for kind in kinds:
        if kind not in _SHORT.values():
            raise Unsupported(f"the indexer type {kind!r} is not known", where=config.where)
    return kinds


FAMILY = Family(
    "glm_moe_dsa",
    read,
    gguf_arch="glm-dsa",
    defaults={
        **deepseek_v32.DEFAULTS,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "num_hidden_layers": 78,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
    },
    safetensors=deepseek_v32.NAMES,
    gguf=deepseek_v32.GGUF_NAMES,
    gguf_keys=deepseek_v32.INDEXER_GGUF_KEYS,
    head=NEXTN,
    ignored=("model.layers.{layers}.", "blk.{layers}."),
)
