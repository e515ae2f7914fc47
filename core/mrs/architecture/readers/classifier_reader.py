"""Read the layers that a model for classification has in place of a head."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.readout_reader import NamedReadout
from mrs.architecture.readout import Dense, PoolingKind, Readout


def read_classifier(
    config: Config, hidden: Dense, names: tuple[str, str], pooling: PoolingKind = "cls"
) -> NamedReadout:
    """The layer `hidden` on the pooled state, and the classes; `names` are of their tensors."""
    dense = hidden, Dense(_classes(config), hidden.rows)
    first, last = names
    slots = {"dense.0": first, "dense.1": last}
    return NamedReadout(Readout(pooling, dense, normalize=False, is_score=True), slots)


def read_tanh_classifier(config: Config, first: str, last: str) -> NamedReadout:
    """The classifier of BERT: a dense layer with tanh on the first token, and the classes."""
    size = config.positive("hidden_size")
    return read_classifier(config, Dense(size, size, activation="tanh"), (first, last))


def read_normed_classifier(config: Config, norm: Norm) -> NamedReadout:
    """A dense layer with a norm on the first token or the mean of all, and the classes."""
    config.allow_only("classifier_activation", "gelu")
    config.allow_only("classifier_pooling", "cls", "mean")
    size, bias = config.positive("hidden_size"), config.flag("classifier_bias", False)
    kind: PoolingKind = "mean" if config.values.get("classifier_pooling") == "mean" else "cls"
    hidden = Dense(size, size, bias, "gelu", norm)
    classifier = read_classifier(config, hidden, ("head.dense", "classifier"), kind)
    return classifier._replace(names={**classifier.names, "dense.0.norm": "head.norm"})


def read_score(config: Config) -> NamedReadout:
    """The classifier of a decoder: the classes of the last token, without a bias."""
    scores = Dense(_classes(config), config.positive("hidden_size"), bias=False)
    readout = Readout("last", (scores,), normalize=False, is_score=True)
    return NamedReadout(readout, {"dense.0": "score"})


def _classes(config: Config) -> int:
    """The number of classes: that of their names in the config, or else `num_labels`."""
    return len(config.mapping("id2label")) or config.positive("num_labels", 2)
