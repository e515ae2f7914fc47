"""Read which layers attend to the tokens that the indexer of an earlier layer has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.indexed_attention_spec import (
    BorrowedChoiceAttention,
    IndexedAttention,
)
from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.architecture.readers.layer_kinds_reader import layer_count, of_layers
from mrs.errors import NotReadable, Unsupported

_SHORT = {"F": "full", "S": "shared"}


def lending_and_borrowing(config: Config, own: IndexedAttention) -> list[LatentAttention]:
    """The attention of each layer; that of layers with an indexer is `own`."""
    kinds = _kinds(config)
    if kinds[0] != "full":
        raise NotReadable("the first layer has no indexer", where=config.where)
    common = {each.name: getattr(own, each.name) for each in fields(LatentAttention)}
    borrowed = BorrowedChoiceAttention(**common, top_k=own.indexer.top_k)
    lent = replace(own, lends_choice=True)
    return [
        borrowed if kind == "shared" else lent if after == "shared" else own
        for kind, after in zip(kinds, [*kinds[1:], "full"], strict=True)
    ]


def _kinds(config: Config) -> Sequence[str]:
    """`full` or `shared` for each layer: a list, letters, or every layer of an interval."""
    if config.has("indexer_types"):
        kinds = list(of_layers(config, "indexer_types"))
    elif isinstance(pattern := config.values.get("index_topk_pattern"), str):
        letters = config.changed({"index_topk_pattern": list(pattern)})
        kinds = [_SHORT.get(each, each) for each in of_layers(letters, "index_topk_pattern")]
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
