"""Read how a model makes vectors or scores from its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mrs.architecture.description import SentenceFilesLike
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.pooler import (
    Dense,
    DenseActivation,
    Pooler,
    PoolingKind,
    Ranking,
    ScoreScale,
    TokenScore,
)
from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.layers.norm.config import read_layer_norm
from mrs.layers.norm.spec import Norm

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
#: The module whose scores are logits of tokens.
LOGIT_SCORE = "LogitScore"
#: The config key of a GGUF file's pooling, and its values: none, mean, first and last token, and
#: that of a classifier.
POOLING_KEY = "gguf_pooling"
_GGUF_RANKS = 4
_GGUF_POOLING: dict[int, PoolingKind] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
#: The config key of the rows of a dense layer after the pooling, and its tensor: in the order of
#: the modules that they were.
GGUF_DENSE = {"dense_2_rows": "dense_2", "dense_3_rows": "dense_3"}
_ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


class NamedPooler(NamedTuple):
    """A pooler, and the names of its tensors by slot."""

    pooler: Pooler
    names: Mapping[str, str]


def read_pooler(
    files: SentenceFilesLike, of_states: Pooler, hidden_size: int, where: str
) -> NamedPooler:
    """The modules after the model, whose states may be mapped before they are pooled.

    Raises Unsupported, with its name, for what is not supported.
    """
    pooler = replace(of_states, normalize=False)
    names: dict[str, str] = {}
    size = pooler.dense[-1].rows if pooler.dense else hidden_size
    for module in files.modules[1:]:
        config = Config(module.config, f"{where}/{module.folder}")
        if module.kind == "Pooling" and not names:
            pooler = replace(pooler, pooling=_read_pooling(config))
        elif module.kind == "Dense" and not pooler.normalize:
            names[f"dense.{len(pooler.dense)}"] = f"{module.folder}/linear"
            dense = _read_dense(config, size)
            pooler, size = replace(pooler, dense=(*pooler.dense, dense)), dense.rows
        elif module.kind == "Normalize":
            pooler = replace(pooler, normalize=True)
        elif module.kind != "Dropout":
            raise Unsupported(
                f"the module {module.kind} of sentence-transformers is not supported here",
                where=f"{where}/modules.json",
            )
    prompts, default = read_prompts(Config(files.settings, where))
    lowercase = Config(files.transformer, where).flag("do_lower_case", False)
    pooler = replace(pooler, prompts=prompts, default_prompt=default, lowercase=lowercase)
    return NamedPooler(pooler, names)


def ranks_by_tokens(files: SentenceFilesLike) -> bool:
    """Whether the logits of tokens are the scores of a model with these files."""
    return any(module.kind == LOGIT_SCORE for module in files.modules)


def with_pooling(spec: ModelSpec, config: Config) -> tuple[ModelSpec, Mapping[str, str]]:
    """The spec of a GGUF file, with a pooler if its metadata has one, or for an encoder.

    Comes with the names of the pooler's tensors. llama.cpp normalizes all embeddings.
    """
    if not config.has(POOLING_KEY) and not spec.attends_both_ways:
        return spec, {}
    kind = config.integer(POOLING_KEY, 0)
    if kind == _GGUF_RANKS:
        pooler, names = _read_ranks(spec, config)
    elif kind in _GGUF_POOLING:
        pooler, names = _with_dense(Pooler(_GGUF_POOLING[kind]), spec.hidden_size, config)
    else:
        what = f"pooling_type = {kind} of a GGUF file is not supported"
        raise Unsupported(what, where=config.where)
    pooler = sized(pooler, spec.hidden_size, config)
    return replace(spec, tied_head=False, head_bias=False, pooler=pooler), names


def _with_dense(pooler: Pooler, size: int, config: Config) -> NamedPooler:
    """The pooler with the dense layers of a GGUF file, which have neither bias nor activation."""
    names: dict[str, str] = {}
    for key, tensor in GGUF_DENSE.items():
        if config.has(key):
            dense = Dense(config.positive(key), size, bias=False)
            names[f"dense.{len(pooler.dense)}"] = tensor
            pooler, size = replace(pooler, dense=(*pooler.dense, dense)), dense.rows
    return NamedPooler(pooler, names)


def _read_ranks(spec: ModelSpec, config: Config) -> NamedPooler:
    """The classifier of a GGUF file: a layer with tanh if there is one, and the classes."""
    size = spec.hidden_size
    bias = config.has("classes_bias")
    classes = Dense(config.positive("classes"), size, bias)
    stated = config.sequence("classifier_labels", ())
    if len(stated) == classes.rows:
        labels = _distinct(stated, config)
    else:
        labels = read_labels(config.changed({"num_labels": classes.rows}))
    pooling: PoolingKind = "cls" if spec.attends_both_ways else "last"
    dense: tuple[Dense, ...] = (classes,)
    names = {"dense.0": "cls.output"}
    if config.has("classifier_norm"):  # ModernBERT's, which llama.cpp puts after the mean
        norm = read_layer_norm(config, bias=False)
        dense = Dense(size, size, config.has("classifier_bias"), "gelu", norm), *dense
        names = {"dense.0": "cls", "dense.0.norm": "cls.norm", "dense.1": "cls.output"}
        pooling = "mean"
    elif config.has("classifier_size"):
        dense = Dense(size, size, activation="tanh"), *dense
        names = {"dense.0": "cls", "dense.1": "cls.output"}
    pooler = replace(
        _of_classes(config, pooling, dense, labels), is_difference=labels == ("yes", "no")
    )
    return NamedPooler(pooler, names)


def sized(pooler: Pooler, hidden_size: int, config: Config) -> Pooler:
    """The pooler with its sizes: those below the whole are in the model's config.json."""
    size = pooler.dense[-1].rows if pooler.dense else hidden_size
    known: tuple[int, ...] | range = ()
    if config.has("matryoshka_dimensions"):
        stated = config.sequence("matryoshka_dimensions")
        known = tuple(sorted({n for n in stated if isinstance(n, int) and 0 < n < size}))
    elif config.flag("is_matryoshka", False):
        known = range(1, size)
    return replace(pooler, size=size, dimensions=known)


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


def read_prompts(config: Config) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """(texts by name, name of the default) in the settings. Raises NotReadable."""
    prompts = config.mapping("prompts")
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise NotReadable(f"the prompt {name!r} is not a text", where=config.where)
    default = config.text("default_prompt_name", "") or None
    if default is not None and default not in prompts:
        raise NotReadable(f"there is no prompt {default!r}", where=config.where)
    return tuple(sorted(prompts.items())), default


def read_ranking(files: SentenceFilesLike, vocab_size: int, where: str) -> Ranking:
    """The tokens of the answer, and the prompt. Raises NotReadable and Unsupported."""
    tokens = None
    for module in files.modules:
        if module.kind == LOGIT_SCORE:
            config = Config(module.config, f"{where}/{module.folder}")
            no = config.integer("false_token_id") if config.has("false_token_id") else None
            tokens = TokenScore(config.integer("true_token_id"), no)
            if not all(0 <= each < vocab_size for each in (tokens.yes_id, no or 0)):
                raise NotReadable(f"it has no tokens {tokens.yes_id} and {no}", where=config.where)
    prompts, default = read_prompts(Config(files.settings, where))
    return Ranking(tokens, dict(prompts).get(default or ""), _begins_reply(files, where))


def _begins_reply(files: SentenceFilesLike, where: str) -> bool:
    kinds = Config(files.transformer, where).mapping("processing_kwargs")
    settings = Config(Config(kinds, where).mapping("chat_template"), where)
    for key in settings.values:
        if key != "add_generation_prompt":
            raise Unsupported(f"the setting {key!r} of a chat template is not known", where=where)
    return settings.flag("add_generation_prompt", False)


def read_classifier(
    config: Config, hidden: Dense, names: tuple[str, str], pooling: PoolingKind = "cls"
) -> NamedPooler:
    """The layer `hidden` on the pooled state, and the classes; `names` are of their tensors."""
    labels = read_labels(config)
    dense = hidden, Dense(len(labels), hidden.rows)
    first, last = names
    slots = {"dense.0": first, "dense.1": last}
    return NamedPooler(_of_classes(config, pooling, dense, labels), slots)


def read_tanh_classifier(config: Config, first: str, last: str) -> NamedPooler:
    """The classifier of BERT: a dense layer with tanh on the first token, and the classes."""
    size = config.positive("hidden_size")
    return read_classifier(config, Dense(size, size, activation="tanh"), (first, last))


def read_normed_classifier(config: Config, norm: Norm) -> NamedPooler:
    """A dense layer with a norm on the first token or the mean of all, and the classes."""
    config.allow_only("classifier_activation", "gelu")
    config.allow_only("classifier_pooling", "cls", "mean")
    size, bias = config.positive("hidden_size"), config.flag("classifier_bias", False)
    kind: PoolingKind = "mean" if config.values.get("classifier_pooling") == "mean" else "cls"
    hidden = Dense(size, size, bias, "gelu", norm)
    classifier = read_classifier(config, hidden, ("head.dense", "classifier"), kind)
    return classifier._replace(names={**classifier.names, "dense.0.norm": "head.norm"})


def read_score(config: Config) -> NamedPooler:
    """The classifier of a decoder: the classes of the last token, without a bias."""
    labels = read_labels(config)
    scores = Dense(len(labels), config.positive("hidden_size"), bias=False)
    return NamedPooler(_of_classes(config, "last", (scores,), labels), {"dense.0": "score"})


def _of_classes(
    config: Config, pooling: PoolingKind, dense: tuple[Dense, ...], labels: tuple[str, ...]
) -> Pooler:
    """What makes scores of these classes.

    A config that does not say what its classes are has one that fits or not, or several of which
    one does.
    """
    config.allow_only("problem_type", *_SCALES)
    usual = "multi_label_classification" if len(labels) == 1 else "single_label_classification"
    scale = _SCALES[config.text("problem_type", usual)]
    return Pooler(pooling, dense, normalize=False, is_score=True, labels=labels, scale=scale)


#: The values of `problem_type`, of configs.
_SCALES: dict[str, ScoreScale] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}
#: A broken config must not make a huge list.
_MOST_CLASSES = 100_000


def read_labels(config: Config) -> tuple[str, ...]:
    """The names of the classes in the config, or usual ones of `num_labels` classes."""
    named = config.mapping("id2label")
    count = len(named) or config.positive("num_labels", 2)
    if count > _MOST_CLASSES:
        raise NotReadable(f"num_labels = {count} is out of range", where=config.where)
    return _distinct([named.get(str(index), f"LABEL_{index}") for index in range(count)], config)


def _distinct(names: Sequence[object], config: Config) -> tuple[str, ...]:
    labels = tuple(map(str, names))
    if len({*labels}) < len(labels):
        raise NotReadable("two of its classes have the same name", where=config.where)
    return labels
