"""Write how much of a layer the native library computes, as the table `tests/native_calls.md`.

    python tests/families/native_calls.py

Of the configurations of the parity tests, with every matrix packed. Adjacent layers of one native
call and no operation of torch are computed in one call together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import transformers
from case import Case
from parity_cases import CASES

from mrs.architecture.family_registry import family_by_name
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.graph.layer_graph import native_graph
from mrs.graph.operations import Compute, Operation
from mrs.graph.program import parts_of
from mrs.kernels.native_limits import is_native
from mrs.layers.attention.spec import Attention
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.layers.layer import Layer

TABLE = Path(__file__).parents[1] / "native_calls.md"
_HEAD = """\
# Native calls of a layer

How many calls of the native library compute a layer of a few tokens on a CPU, and which operations
torch computes besides. Odd heads are of sizes that native attention does not know. Written by
`python tests/families/native_calls.py`.

| family | mixer, feed-forward | native calls | operations of torch | configurations |
| --- | --- | --- | --- | --- |
"""


class Calls(NamedTuple):
    """What computes a kind of layer: native calls, and operations of torch by name."""

    family: str
    kind: str
    native: int
    torch: str


def spec_of(case: Case) -> ModelSpec:
    """The spec of a configuration, without any files."""
    values = transformers.AutoConfig.for_model(case.family, **case.config).to_dict()
    family = family_by_name(case.family)
    return family.read(Config({**family.defaults, **values}, case.id))


def calls_of(layer: Layer, spec: ModelSpec, family: str) -> Calls:
    graph = native_graph(
        layer, spec.hidden_size, lambda slot: True, is_inner=layer.altup is not None
    )
    parts = parts_of(graph)
    by_torch = [each for part in parts if not part.is_native for each in part.operations]
    kinds = map(_kind, (layer.mixer, layer.feed_forward))
    kind = ", ".join(name for name in kinds if not name.startswith("No"))
    native = sum(part.is_native for part in parts)
    return Calls(family, kind, native, ", ".join(map(_name, by_torch)))


def _kind(module: object) -> str:
    name = type(module).__name__
    attention = getattr(module, "attention", module)
    if isinstance(attention, LatentAttention):
        attention = attention.absorbed
    if isinstance(attention, Attention):
        sizes = attention.key_dim, attention.value_dim
        return name if is_native(*sizes) else f"{name} with odd heads"
    return name


def _name(operation: Operation) -> str:
    return operation.module if isinstance(operation, Compute) else type(operation).__name__


def all_calls() -> dict[Calls, list[str]]:
    """The calls of every kind of layer, and the configurations that have it."""
    names: dict[Calls, list[str]] = {}
    for case in CASES:
        for calls in sorted(set(_of_case(case))):
            names.setdefault(calls, []).append(case.name)
    return names


def _of_case(case: Case) -> Iterator[Calls]:
    spec = spec_of(case)
    return (calls_of(layer, spec, case.family) for layer in spec.layers)


def table() -> str:
    lines = (
        f"| {calls.family} | {calls.kind} | {calls.native} | {calls.torch} | {', '.join(names)} |\n"
        for calls, names in sorted(all_calls().items())
    )
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
