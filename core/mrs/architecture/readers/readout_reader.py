"""Reads how a model's hidden states become an embedding from the files of sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from mrs.architecture.config import Config
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readout import Dense, DenseActivation, PoolingKind, Readout
from mrs.errors import NotReadable, Unsupported

_POOLING: dict[str, PoolingKind] = {
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "lasttoken": "last",
    "max": "max",
    "max_tokens": "max",
}
_MODE = "pooling_mode_"
#: The config key of a GGUF file's pooling, and its values: none, mean, first and last token.
POOLING_KEY = "gguf_pooling"
_GGUF_POOLING: dict[int, PoolingKind] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
_ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


class SentenceModuleLike(Protocol):
    """The fields of `mrs.source.sentence_files.SentenceModule`."""

    @property
    def kind(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...


class SentenceFilesLike(Protocol):
    """The fields of `mrs.source.sentence_files.SentenceFiles`."""

    @property
    def modules(self) -> Sequence[SentenceModuleLike]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def transformer(self) -> Mapping[str, Any]: ...


class NamedReadout(NamedTuple):
    """A readout, and the names of its tensors by slot."""

    readout: Readout
    names: Mapping[str, str]


def read_readout(files: SentenceFilesLike, hidden_size: int, where: str) -> NamedReadout:
    """The modules after the model. Raises Unsupported, with its name, for what is not supported."""
    found, size = Readout(normalize=False), hidden_size
    names: dict[str, str] = {}
    for module in files.modules[1:]:
        config = Config(module.config, f"{where}/{module.folder}")
        if module.kind == "Pooling" and not names:
            found = replace(found, pooling=_read_pooling(config))
        elif module.kind == "Dense" and not found.normalize:
            names[f"dense.{len(found.dense)}"] = f"{module.folder}/linear"
            dense = _read_dense(config, size)
            found, size = replace(found, dense=(*found.dense, dense)), dense.rows
        elif module.kind == "Normalize":
            found = replace(found, normalize=True)
        elif module.kind != "Dropout":
            raise Unsupported(
                f"the module {module.kind} of sentence-transformers is not supported here",
                where=f"{where}/modules.json",
            )
    prompts, default = _read_prompts(Config(files.settings, where))
    lowercase = Config(files.transformer, where).flag("do_lower_case", False)
    found = replace(found, prompts=prompts, default_prompt=default, lowercase=lowercase)
    return NamedReadout(found, names)


def with_pooling(spec: ModelSpec, config: Config) -> ModelSpec:
    """The spec of a GGUF file, with a readout if its metadata has one, or for an encoder.

    llama.cpp normalizes all embeddings. Raises Unsupported for a reranker.
    """
    if not config.has(POOLING_KEY) and not spec.attends_both_ways:
        return spec
    kind = config.integer(POOLING_KEY, 0)
    if kind not in _GGUF_POOLING:
        what = f"pooling_type = {kind} of a GGUF file is not supported"
        raise Unsupported(what, where=config.where)
    readout = sized(Readout(_GGUF_POOLING[kind]), spec.hidden_size, config)
    return replace(spec, tied_head=False, head_bias=False, readout=readout)


def sized(readout: Readout, hidden_size: int, config: Config) -> Readout:
    """The readout with its sizes: those below the whole are in the model's config.json."""
    size = readout.dense[-1].rows if readout.dense else hidden_size
    known: tuple[int, ...] | range = ()
    if config.has("matryoshka_dimensions"):
        stated = config.sequence("matryoshka_dimensions")
        known = tuple(sorted({n for n in stated if isinstance(n, int) and 0 < n < size}))
    elif config.flag("is_matryoshka", False):
        known = range(1, size)
    return replace(readout, size=size, dimensions=known)


def read_classifier(
    config: Config, hidden: Dense, names: tuple[str, str], pooling: PoolingKind = "cls"
) -> NamedReadout:
    """The layer `hidden` on the pooled state, and the classes; `names` are those of their tensors.

    The number of classes is that of their names in the config, or else `num_labels`.
    """
    classes = len(config.mapping("id2label")) or config.positive("num_labels", 2)
    dense = hidden, Dense(classes, hidden.rows)
    first, last = names
    slots = {"dense.0": first, "dense.1": last}
    return NamedReadout(Readout(pooling, dense, normalize=False, is_score=True), slots)


def read_tanh_classifier(config: Config, first: str, last: str) -> NamedReadout:
    """The classifier of BERT: a dense layer with tanh on the first token, and the classes."""
    size = config.positive("hidden_size")
    return read_classifier(config, Dense(size, size, activation="tanh"), (first, last))


def most_tokens(files: SentenceFilesLike, spec: ModelSpec, where: str) -> int:
    """The most tokens of a text: what the files say, or else the model's context."""
    stated = Config(files.transformer, where).integer("max_seq_length", 0)
    return min(stated or spec.context_tokens, spec.context_tokens)


def _read_pooling(config: Config) -> PoolingKind:
    if not config.flag("include_prompt", True):
        raise Unsupported("pooling without the prompt is not supported", where=config.where)
    wanted = [
        name.removeprefix(_MODE)
        for name, value in config.values.items()
        if name.startswith(_MODE) and value is True
    ] or [config.text("pooling_mode", "mean")]
    if len(wanted) != 1 or wanted[0] not in _POOLING:
        raise Unsupported(
            f"the pooling {' + '.join(wanted)} is not supported",
            where=config.where,
            hint=f"supported is one of {', '.join(_POOLING)}",
        )
    return _POOLING[wanted[0]]


def _read_dense(config: Config, columns: int) -> Dense:
    stated = config.positive("in_features", columns)
    if stated != columns:
        raise NotReadable(f"in_features is {stated}, not {columns}", where=config.where)
    full_name = config.text("activation_function", "Tanh")
    name = full_name.rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise Unsupported(f"the activation {name!r} is not supported", where=config.where)
    bias = config.flag("bias", True)
    return Dense(config.positive("out_features"), columns, bias, _ACTIVATIONS[name])


def _read_prompts(config: Config) -> tuple[tuple[tuple[str, str], ...], str | None]:
    prompts = config.mapping("prompts")
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise NotReadable(f"the prompt {name!r} is not a text", where=config.where)
    default = config.text("default_prompt_name", "") or None
    if default is not None and default not in prompts:
        raise NotReadable(f"there is no prompt {default!r}", where=config.where)
    return tuple(sorted(prompts.items())), default
