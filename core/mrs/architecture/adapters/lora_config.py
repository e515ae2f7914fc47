"""What adapter_config.json says of a LoRA adapter, in PEFT's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported

#: Settings that change what an adapter does, and that are not supported if they are set.
_NOT_SUPPORTED = (
    "alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication",
    "lora_bias", "megatron_config", "monteclora_config", "target_parameters",
    "trainable_token_indices", "use_bdlora", "use_qalora", "velora_config",
)  # fmt: skip
#: How A and B begin if that leaves the base model as it is; others change its weights, too.
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
_MERGE = "merge the adapter with peft's merge_and_unload(), and load the merged model"
#: Patterns of names that cannot take long to match: few repetitions, none of a group.
_MOST_REPETITIONS = 4
_REPETITIONS = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")


@dataclass(frozen=True)
class LoraConfig:
    """Rank and scale of each module that an adapter changes.

    Keys of `ranks` and `alphas` are regular expressions for the end of a module's name; the first
    one that matches counts. `targets` and `excluded` are names or their ends, empty if the config
    has a pattern instead: then the tensors of the adapter say which modules it changes.
    """

    rank: int
    alpha: float
    is_rank_stabilized: bool
    uses_dora: bool
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]
    targets: tuple[str, ...]
    excluded: tuple[str, ...]
    layers: frozenset[int]

    def rank_of(self, module: str) -> int:
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str, rank: int) -> float:
        divisor = rank**0.5 if self.is_rank_stabilized else rank
        return _matching(self.alphas, module, self.alpha) / divisor

    def changes(self, module: str) -> bool:
        """Whether a module may have tensors in the adapter."""
        if _is_any(module, self.excluded):
            return False
        if self.targets and not _is_any(module, self.targets):
            return False
        index = re.match(r".*?\.(\d+)\.", module)
        return not (self.targets and self.layers) or (
            index is not None and int(index[1]) in self.layers
        )


def read_lora_config(values: Mapping[str, Any], where: str) -> LoraConfig:
    """Raises NotReadable for a malformed config, Unsupported for what would change the result."""
    config = Config(values, where)
    kind = config.text("peft_type", "LORA")
    if kind != "LORA":
        raise Unsupported(f"an adapter of type {kind} is not supported", where=where, hint=_MERGE)
    for key in _NOT_SUPPORTED:
        if values.get(key):
            raise Unsupported(f"an adapter with {key} is not supported", where=where, hint=_MERGE)
    if (bias := config.text("bias", "none")) != "none":
        raise Unsupported(f"an adapter with bias {bias!r} is not supported", where=where)
    if (start := values.get("init_lora_weights")) not in _PLAIN_STARTS:
        raise Unsupported(
            f"an adapter with init_lora_weights {start!r} changes the base model, too",
            where=where,
            hint="convert it to a plain LoRA adapter, as peft's documentation describes",
        )
    return LoraConfig(
        rank=config.integer("r"),
        alpha=config.number("lora_alpha"),
        is_rank_stabilized=config.flag("use_rslora", False),
        uses_dora=config.flag("use_dora", False),
        ranks=_patterns(values, "rank_pattern", where),
        alphas=_patterns(values, "alpha_pattern", where),
        targets=_names(values, "target_modules", where),
        excluded=_names(values, "exclude_modules", where),
        layers=_layers(values, where),
    )


def _is_any(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _matching(values: Mapping[str, float], module: str, default: float) -> float:
    for pattern, value in values.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _patterns(values: Mapping[str, Any], key: str, where: str) -> Mapping[str, float]:
    """A mapping of regular expressions to positive numbers."""
    patterns = values.get(key) or {}
    if not isinstance(patterns, dict):
        raise NotReadable(f"{key} does not map names to numbers", where=where)
    for pattern, value in patterns.items():
        if type(value) not in (int, float) or not 0 < value < 2**31:
            raise NotReadable(f"{key} of {pattern!r} is not a positive number", where=where)
        repetitions = len(_REPETITIONS.findall(pattern))
        if repetitions > _MOST_REPETITIONS or _REPEATED_GROUP.search(pattern):
            raise Unsupported(
                f"the pattern {pattern!r} in {key} repeats too much", where=where, hint=_MERGE
            )
        try:
            re.compile(rf"(.*\.)?({pattern})$")
        except (re.error, OverflowError, RecursionError) as error:
            raise NotReadable(
                f"{pattern!r} in {key} is no regular expression", where=where, hint=str(error)
            ) from error
    return patterns


def _names(values: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list of names; empty if it is missing, or a pattern."""
    names = values.get(key) or ()
    if isinstance(names, str):
        return ()
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise NotReadable(f"{key} is neither a list of names nor a text", where=where)
    return tuple(names)


def _layers(values: Mapping[str, Any], where: str) -> frozenset[int]:
    chosen = values.get("layers_to_transform")
    layers = [chosen] if isinstance(chosen, int) else chosen or []
    if not isinstance(layers, list) or not all(type(index) is int for index in layers):
        raise NotReadable("layers_to_transform is not a list of layers", where=where)
    return frozenset(layers)
