"""How each parameter is stored on its device; planner and loader share these rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from mrs.errors import MrsError, NotReadable, UsageError
from mrs.formats import FORMATS, Format
from mrs.kernels.packed_layout import FLOAT_FORMATS, PACKED_FORMATS, packed_bytes
from mrs.quantization.isq import isq_format, parse_isq
from mrs.request import ActivationBits, CacheType, Dtype, RunRequest
from mrs.topology import Topology, experts_alone, is_expert
from mrs.weights.binding import Parameter
from mrs.weights.role import Role

_DTYPE_FORMATS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
#: How `--dtype` spells the dense formats.
DTYPE_NAMES: dict[str, Dtype] = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
#: The name of each format of keys and values in requests.
CACHE_TYPE_NAMES: dict[str, CacheType] = {
    **DTYPE_NAMES,
    "F8_E4M3": "f8e4m3",
    "Q8_0": "q8_0",
    "Q4_0": "q4_0",
}

#: How a matrix is laid out: `plain` is an ordinary tensor; `packed` has rows interleaved for the
#: native CPU kernels; `blocks` has the same bytes as a GGUF file, which the device's kernels
#: multiply directly or decode for every product.
Form = Literal["plain", "packed", "blocks"]


@dataclass(frozen=True)
class Storage:
    """The format, exact size and layout of one parameter in memory.

    `order_bytes` is the part for the indices of columns that are sorted by group. `scheme` is set
    for what a file stores in several tensors. Products with `residuals` are those of
    `PackedMatrix.add_residuals`.
    """

    format: Format
    size_bytes: int
    form: Form = "plain"
    order_bytes: int = 0
    scheme: str = ""
    residuals: bool = False

    @property
    def is_permuted(self) -> bool:
        return self.order_bytes > 0


def resolve_dtype(wanted: str, stored: Mapping[Format, int]) -> Format:
    """The format of unquantized weights.

    That is `wanted`, or with `auto` the most frequent one in the file; `stored` counts the file's
    tensors of each format. A file with quantized tensors uses BF16.
    """
    if wanted != "auto":
        return FORMATS[_DTYPE_FORMATS[wanted]]
    dense = [f for f in stored if f.name in _DTYPE_FORMATS.values()]
    if not dense or any(f.is_quantized for f in stored):
        return FORMATS["BF16"]
    return max(dense, key=stored.__getitem__)


@dataclass(frozen=True)
class StorageRules:
    """How a device stores parameters.

    `dense` is the format of unquantized weights, `isq` that of `--isq`, which a `topology`
    overrides for single parameters. `packs` is True on a CPU that runs the native kernels, whose
    products have so many bits of `activations`.
    """

    dense: Format
    isq: Format | None = None
    packs: bool = False
    topology: Topology | None = None
    activations: ActivationBits = 8

    def of(self, parameter: Parameter) -> StorageRules:
        """The rules for one parameter, without a topology."""
        if self.topology is None:
            return self
        names = [parameter.name, *(piece.tensor for piece in parameter.pieces)]
        rule = self.topology.isq(parameter.layer, names)
        isq = parse_isq(rule) if rule else self.isq
        return replace(self, isq=isq, topology=None)


def quantization(
    request: RunRequest, parameters: Iterable[Parameter]
) -> tuple[Format | None, Topology | None]:
    """The format of weights and the topology of a request, in which `-o moqe` is a rule.

    An exact model has all weights in float32. Raises UsageError for `-o moqe` of a model without
    experts.
    """
    if request.exact:
        return FORMATS["F32"], None
    if request.isq is None:
        return None, request.topology
    if not request.moqe:
        return parse_isq(request.isq), request.topology
    if not any(is_expert(parameter.name) for parameter in parameters):
        hint = "leave it out: --isq alone quantizes all matrices"
        raise UsageError("-o moqe needs a model with experts", hint=hint)
    return None, experts_alone(request.isq, request.topology)


def isq_rules(topology: Topology | None) -> Topology | None:
    """The rules of a topology that quantize, if any. Raises UsageError and Unsupported."""
    isq_topology = topology and topology.of_isq
    for rule in isq_topology.rules if isq_topology else ():
        try:
            parse_isq(rule.isq or "")
        except MrsError as error:
            where = f"{topology.where}, {rule.selector}" if topology else ""
            raise type(error)(error.what, where=where, hint=error.hint) from error
    return isq_topology


def isq_names(isq: str | None, rules: Topology | None) -> list[str]:
    """The quantizations that are asked for: that of the model, and those of `isq_rules`."""
    names = (isq, *(rule.isq for rule in (rules.rules if rules else ())))
    return [name for name in names if name is not None]


def store(
    parameter: Parameter,
    stored: Sequence[Format],
    rules: StorageRules,
    *,
    is_permuted: bool = False,
) -> Storage:
    """How a parameter is stored whose pieces have the formats `stored` in the file.

    Vectors are float32. A matrix gets the format of `--isq` or of the file if that is the same for
    all of its pieces, else the dense format. On a CPU with native kernels, formats that these
    kernels do not support become dense too, because decoding them for every token would take most
    of the time. `is_permuted` says whether the file quantizes groups of columns that are not
    adjacent. Raises NotReadable for a quantized vector of one dimension; the matrix of a router may
    be quantized in a file.
    """
    is_vector = parameter.role == "vector" and len(parameter.shape) == 1
    if is_vector and any(format.is_quantized for format in stored):
        raise NotReadable(
            f"the vector {parameter.pieces[0].tensor!r} is quantized, which is not supported"
        )
    stored_as = _store(parameter.role, parameter.shape, frozenset(stored), rules)
    if stored_as.form == "packed":
        has_codes = stored_as.format.name not in FLOAT_FORMATS
        residuals = rules.activations == 16 or (has_codes and is_values(parameter))
        stored_as = replace(stored_as, residuals=residuals)
    if not is_permuted or stored_as.form == "plain":
        return stored_as
    order_bytes = 4 * parameter.columns
    return replace(
        stored_as, size_bytes=stored_as.size_bytes + order_bytes, order_bytes=order_bytes
    )


def is_values(parameter: Parameter) -> bool:
    """Whether it makes the values of attention, whose errors sums over many keys let through."""
    return parameter.layer is not None and parameter.name.endswith(".mixer.v.weight")


@lru_cache(maxsize=1024)
def _store(
    role: Role, shape: tuple[int, ...], stored: frozenset[Format], rules: StorageRules
) -> Storage:
    if role == "vector":
        return _plain(shape, FORMATS["F32"])
    if role == "dense":
        return _plain(shape, rules.dense)
    wanted = {_wanted(role, shape, format, rules.isq) for format in stored}
    (chosen,) = wanted if len(wanted) == 1 else {rules.dense}
    if not chosen.is_quantized:
        chosen = rules.dense
    if rules.packs and chosen.name in PACKED_FORMATS:
        rows, columns = shape
        return Storage(chosen, packed_bytes(chosen, rows, columns), "packed")
    if chosen.is_quantized and not rules.packs:
        return Storage(chosen, chosen.size_bytes(shape), "blocks")
    return _plain(shape, rules.dense)


def _wanted(role: Role, shape: tuple[int, ...], stored: Format, isq: Format | None) -> Format:
    if isq is None or role == "tower":
        return stored
    if not isq.is_quantized:
        return isq
    return isq_format(role, shape, isq, stored)[0]


def _plain(shape: tuple[int, ...], format: Format) -> Storage:
    return Storage(format, format.size_bytes(shape))
