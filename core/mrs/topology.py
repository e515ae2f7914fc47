"""`--topology FILE`: the quantization and the device of layers, and of tensors by their names.

The file is YAML: a selector, and `isq` and `device` for what it selects. A selector is a range of
layers whose end is excluded, one layer, or a regular expression between slashes, which is searched
in the names of tensors, those of the files and ours (`layers.0.ffn.experts.0.up.weight`):

    0-16: {isq: q6k}
    16-32: {isq: q4k, device: "cuda[1]"}
    /experts/: {device: cpu}

A later selector overrides an earlier one, and a regular expression overrides all ranges, which are
sorted by their ends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mrs.errors import NotReadable, UsageError
from mrs.process.files import read_at_most

#: Larger files are not topologies.
MAX_FILE_BYTES = 128 * 1024
_MOST_DEPTH = 8
_EXPECTED = 'expected lines such as 0-8: {isq: q4k, device: "cuda[0]"}'
_LAYERS = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_DEVICE = re.compile(r"(cpu)|(cuda|metal)(?:\[([0-9]{1,4})\]|:([0-9]{1,4}))?", re.IGNORECASE)
#: The part of our names that all routed experts have, and no other parameter.
_EXPERTS = ".ffn.experts."


def is_expert(name: str) -> bool:
    """Whether the parameter of this name belongs to an expert that a router chooses."""
    return _EXPERTS in name


def expert_number(name: str) -> int | None:
    """Which expert the parameter of this name belongs to; None: it belongs to none."""
    before, _, after = name.partition(_EXPERTS)
    number = after.partition(".")[0]
    return int(number) if before and number.isdecimal() else None


@dataclass(frozen=True)
class Rule:
    """A selector as it was written, its value of `--isq`, and the label of its device.

    `layers` are the selected layers, and `experts_only` restricts them to their experts. Without
    `layers`, the selector is a regular expression.
    """

    selector: str
    isq: str | None = None
    device: str | None = None
    layers: range | None = None
    experts_only: bool = False

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.selector[1:-1])

    def matches(self, layer: int | None, names: Collection[str]) -> bool:
        """Whether the rule is for a parameter of a layer that has these names."""
        if self.layers is None:
            return any(self._pattern.search(name) for name in names)
        is_meant = not self.experts_only or any(map(is_expert, names))
        return layer is not None and layer in self.layers and is_meant


@dataclass(frozen=True)
class Topology:
    """The rules of a file, in the order in which later ones override earlier ones."""

    rules: tuple[Rule, ...] = ()
    where: str = ""

    @property
    def of_isq(self) -> Topology | None:
        """The rules that quantize; None if there are none."""
        rules = tuple(rule for rule in self.rules if rule.isq is not None)
        return Topology(rules, self.where) if rules else None

    def isq(self, layer: int | None, names: Collection[str]) -> str | None:
        """The value of `--isq` for a parameter of a layer that has these names."""
        formats = [rule.isq for rule in self.rules if rule.isq and rule.matches(layer, names)]
        return formats[-1] if formats else None

    def to_json(self) -> list[dict[str, Any]]:
        return [{"selector": rule.selector, "isq": rule.isq} for rule in self.rules]


def experts_alone(isq: str, where: Topology | None) -> Topology:
    """The rules of a topology, if there is one, and before them one that quantizes all experts."""
    rule = Rule("/" + re.escape(_EXPERTS) + "/", isq=isq)
    return replace(where or Topology(), rules=(rule, *(where.rules if where else ())))


def experts_on_cpu(layers: int | None) -> Rule:
    """The rule for the experts of the first `layers`, of all layers if None, on the CPU."""
    flag = "--cpu-moe" if layers is None else f"--n-cpu-moe {layers}"
    count = 10**9 if layers is None else layers
    return Rule(flag, device="cpu", layers=range(count), experts_only=True)


def read_topology(path: str) -> Topology:
    """The rules in a file. Raises NotReadable and UsageError."""
    import yaml

    try:
        given = _plain_yaml(read_at_most(Path(path).expanduser(), MAX_FILE_BYTES))
    except OSError as error:
        reason = error.strerror or ""
        raise NotReadable("the topology cannot be read", where=path, hint=reason) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = " ".join(str(error).split())
        raise NotReadable("the topology is not YAML", where=path, hint=what) from error
    if not isinstance(given, dict) or not given:
        raise UsageError("the topology has no selectors", where=path, hint=_EXPECTED)
    return topology_of(given, path)


def _plain_yaml(text: bytes) -> Any:
    """The value of a YAML text. Raises YAMLError, also for deep nesting, whose reading takes
    time by its square, and for aliases: a few in each other mean values without a bound."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias such as *name: write the settings out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
    return yaml.safe_load(text)


def topology_of(given: Mapping[Any, Any], where: str) -> Topology:
    """The rules of a mapping from selectors to settings. Raises UsageError."""
    rules = [_rule(_text(selector, where), given[selector], where) for selector in given]
    ranges = [rule for rule in rules if rule.layers is not None]
    ranges.sort(key=lambda rule: rule.layers.stop if rule.layers else 0)
    return Topology((*ranges, *(rule for rule in rules if rule.layers is None)), where)


def _rule(selector: str, settings: Any, where: str) -> Rule:
    where = f"{where}, {selector}"
    settings = {} if settings is None else settings
    if not isinstance(settings, dict) or not settings.keys() <= {"isq", "device"}:
        raise UsageError("a selector takes isq and device", where=where, hint=_EXPECTED)
    isq, device = settings.get("isq"), settings.get("device")
    return Rule(
        selector,
        None if isq is None else _text(isq, where),
        None if device is None else _label(_text(device, where), where),
        _layers(selector, where),
    )


def _text(value: Any, where: str) -> str:
    """A selector or a setting as it was written. Raises UsageError for what is no text or number
    of a usual size."""
    if isinstance(value, str) or (type(value) is int and abs(value) < 10**9):
        return str(value)
    what = "selectors and settings are texts or numbers below 10^9"
    raise UsageError(what, where=where, hint=_EXPECTED)


def _layers(selector: str, where: str) -> range | None:
    """The layers of a selector; None for a regular expression."""
    if len(selector) > 2 and selector[0] == selector[-1] == "/":
        try:
            re.compile(selector[1:-1])
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError("not a regular expression", where=where, hint=str(error)) from error
        return None
    match = _LAYERS.fullmatch(selector.strip())
    if match is None:
        hint = "give layers such as 4 or 0-8, or a regular expression such as /experts/"
        raise UsageError("not a selector", where=where, hint=hint)
    start = int(match[1])
    stop = start + 1 if match[2] is None else int(match[2])
    if stop <= start:
        hint = "the end is excluded: 0-8 is layers 0 to 7"
        raise UsageError("an empty range of layers", where=where, hint=hint)
    return range(start, stop)


def _label(device: str, where: str) -> str:
    """The label of a device: `cuda:0` for `cuda[0]`, `cuda:0` and `cuda`."""
    match = _DEVICE.fullmatch(device.strip())
    if match is None:
        raise UsageError(
            f"{device} is not a device", where=where, hint="give cpu, cuda[0] or metal[0]"
        )
    return "cpu" if match[1] else f"{match[2].lower()}:{int(match[3] or match[4] or 0)}"


def check_layers(topology: Topology, layer_count: int) -> None:
    """Raises UsageError if a range has layers that the model does not have."""
    for rule in topology.rules:
        if rule.layers is not None and not rule.experts_only and rule.layers.stop > layer_count:
            raise UsageError(
                f"layer {rule.layers.stop - 1} does not exist",
                where=f"{topology.where}, {rule.selector}",
                hint=f"the model has {layer_count} layers, 0 to {layer_count - 1}",
            )


def known_device(rule: Rule, labels: Sequence[str], where: str) -> int:
    """The index of a rule's device among `labels`. Raises UsageError."""
    assert rule.device is not None
    if rule.device not in labels:
        raise UsageError(
            f"there is no device {rule.device}",
            where=f"{where}, {rule.selector}" if where else rule.selector,
            hint=f"the devices here are {', '.join(labels)}",
        )
    return labels.index(rule.device)
