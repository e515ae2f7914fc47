"""The tensors of UQFF files, by the names that they have in a checkpoint without quantization.

A UQFF file is a safetensors file. A layer has its weight and small tensors that describe it, such
as `K.weight.format` with the number of its kind. Blocks of GGUF become a tensor of that format;
the tensors of other kinds are those of `mrs.quantization.uqff`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from mrs.errors import NotReadable, Unsupported
from mrs.formats import FORMATS, GGML_FORMATS, UQFF_BLOCK, UQFF_F8Q8_BYTES, UQFF_Q8_1_BYTES
from mrs.source.checkpoint import TensorInfo
from mrs.source.folder import Folder
from mrs.source.headers import joined
from mrs.source.reader import ByteReader
from mrs.source.safetensors_header import SafetensorsHeader, read_safetensors_header
from mrs.source.uqff_files import DIGEST, RESIDUAL, Written, check_set

#: The newest version that is read; older minor versions are read, too.
VERSION = (1, 2, 0)
VERSION_TENSORS = tuple(f"uqff.version.{part}" for part in ("major", "minor", "patch"))
#: Tensors of at most this size are values that describe a layer.
_SMALL_BYTES = 64
#: Small tensors that are so near are read at once.
_GAP_BYTES = 4096
_MAX_RANK = 4

Tensors = dict[str, TensorInfo]
Values = Mapping[str, bytes]


def uqff_tensors(folder: Folder, files: Sequence[str]) -> Tensors:
    """All tensors of UQFF shards and of the residual file, which is the last of `files`.

    Raises NotReadable for inconsistent tensors and for files of several runs, Unsupported for
    other versions and kinds.
    """
    written: dict[str, Written | None] = {}
    stored: Tensors = {}
    values: dict[str, bytes] = {}
    for file in files[:-1]:
        reader = folder.open(file)
        header = read_safetensors_header(reader, file)
        written[file] = _written(header, reader)
        listed = {t.name: t for t in header.tensors}
        if listed and all(name.isdecimal() for name in listed):
            raise _old(file)
        file_values = _small_values(reader, listed, is_local=folder.path is not None)
        _check_version(file_values, values, file)
        values |= file_values
        stored = joined(stored, _without(listed, VERSION_TENSORS), folder)
    if not values.keys() >= set(VERSION_TENSORS):
        raise NotReadable("the files have no version of UQFF", where=folder.label)
    reader = folder.open(RESIDUAL)
    header = read_safetensors_header(reader, RESIDUAL)
    check_set(folder, {**written, RESIDUAL: _written(header, reader)})
    return joined(_layers(stored, values), {t.name: t for t in header.tensors}, folder)


def _written(header: SafetensorsHeader, reader: ByteReader) -> Written | None:
    digest = header.metadata.get(DIGEST)
    return None if digest is None else Written(reader.size_bytes, digest)


def _layers(stored: Tensors, values: Values) -> Tensors:
    tensors = dict(stored)
    for name in stored:
        weight = name.removesuffix(".format")
        if weight == name or not weight.endswith(".weight"):
            continue
        parts = {role: tensors.pop(weight + role) for role in _ROLES if weight + role in tensors}
        if "" not in parts:
            raise NotReadable(f"the tensor {weight!r} is missing", where=stored[name].file)
        layer = _Layer(weight, parts, values)
        kind = layer.kind()
        for role in kind.roles:
            layer.part(role)
        tensors |= kind.read(layer)
    return tensors


class _Kind(NamedTuple):
    """A kind of layers: its number, its name, its tensors in addition to the weight."""

    number: int
    name: str
    roles: Sequence[str]
    read: Callable[[_Layer], Tensors]


class _Layer:
    """One layer of a file: the tensors whose names begin with that of its weight."""

    def __init__(self, weight: str, parts: Mapping[str, TensorInfo], values: Values) -> None:
        self.weight, self.parts, self._values = weight, parts, values

    def kind(self) -> _Kind:
        """The kind, by the tensors that the layer has. Raises Unsupported and NotReadable."""
        by_tensors = next(kind for kind in _KINDS if not kind.roles or kind.roles[0] in self.parts)
        if f"{self.weight}.format" not in self._values:
            return by_tensors
        number = self.number(".format")
        if number == by_tensors.number:
            return by_tensors
        by_number = next((kind for kind in _KINDS if kind.number == number), None)
        if by_number is None:
            raise Unsupported(
                f"the weight {self.weight!r} is of kind {number}, which is not known",
                where=self.parts[""].file,
            )
        raise self.wrong(
            "", f"is {by_number.name} by its kind, and {by_tensors.name} by its tensors"
        )

    def part(self, role: str) -> TensorInfo:
        if role not in self.parts:
            raise NotReadable(
                f"the tensor {self.weight + role!r} is missing", where=self.parts[""].file
            )
        return self.parts[role]

    def number(self, role: str) -> int:
        return self.numbers(role, 1)[0]

    def numbers(self, role: str, most: int = _MAX_RANK) -> tuple[int, ...]:
        """The values of a small tensor of integers."""
        info = self.part(role)
        code = {"U8": "B", "U32": "I"}.get(info.format.name)
        count = prod(info.shape)
        if code is None or len(info.shape) > 1 or not 1 <= count <= most:
            raise self.wrong(role, f"is {info.format.name} {list(info.shape)}, expected integers")
        return struct.unpack(f"<{count}{code}", self._values[self.weight + role])

    def blocks(self, elements: int, block_bytes: int) -> TensorInfo:
        """The weight as bytes whose last dimension is that of its shape, in blocks."""
        shape = self.numbers(".shape")
        info = self.part("")
        if shape[-1] % elements:
            raise self.wrong(".shape", f"has rows of {shape[-1]}, no multiple of {elements}")
        shape = (*shape[:-1], shape[-1] // elements * block_bytes)
        self.require_bytes(info, prod(shape))
        return info._replace(shape=shape, format=FORMATS["U8"])

    def require_bytes(self, info: TensorInfo, expected: int) -> None:
        if info.format.name != "U8" or info.size_bytes != expected:
            what = f"has {info.size_bytes} bytes of {info.format.name}, expected {expected} of U8"
            raise self.wrong("", what)

    def wrong(self, role: str, what: str) -> NotReadable:
        return NotReadable(f"the tensor {self.weight + role!r} {what}", where=self.parts[""].file)

    def kept(self, *roles: str) -> Tensors:
        return {self.weight + role: self.part(role) for role in roles}


def _read_gguf(layer: _Layer) -> Tensors:
    info, number = layer.part(""), layer.number(".dtype")
    format = GGML_FORMATS.get(number)
    if format is None:
        raise Unsupported(
            f"the weight {layer.weight!r} is of ggml's type {number}, which is not known",
            where=info.file,
        )
    if format.name == "Q8_1":
        blocks = layer.blocks(UQFF_BLOCK, UQFF_Q8_1_BYTES)
        return {layer.weight: blocks, **layer.kept(".dtype")}
    shape = layer.numbers(".shape")
    try:
        size_bytes = format.size_bytes(shape)
    except ValueError as error:
        raise layer.wrong(".shape", str(error)) from error
    layer.require_bytes(info, size_bytes)
    return {layer.weight: info._replace(shape=shape, format=format)}


def _read_hqq(layer: _Layer) -> Tensors:
    bits, axis = layer.number(".bits"), layer.number(".axis")
    if axis or bits not in (2, 4, 8):
        raise Unsupported(
            f"the weight {layer.weight!r} is HQQ with {bits} bits along axis {axis}, which is not "
            "supported",
            where=layer.part("").file,
        )
    group, scales = layer.number(".group_size"), layer.part(".scales")
    if prod(scales.shape) * group != prod(layer.numbers(".shape")):
        raise layer.wrong(".scales", f"has shape {list(scales.shape)} for groups of {group}")
    codes = layer.blocks(8 // bits, 1)
    return {layer.weight: codes, **layer.kept(".scales", ".zeros")}


def _read_afq(layer: _Layer) -> Tensors:
    words, groups = (layer.part(role).shape[-1:] for role in ("", ".scales"))
    bits, group = layer.number(".bits"), layer.number(".group_size")
    if not words or not groups or words[0] * 32 != groups[0] * group * bits:
        raise layer.wrong("", f"has {list(words)} words in rows of {list(groups)} groups")
    return layer.kept("", ".scales", ".biases")


def _read_f8q8(layer: _Layer) -> Tensors:
    return {layer.weight: layer.blocks(UQFF_BLOCK, UQFF_F8Q8_BYTES), **layer.kept(".num_blocks")}


#: The first tensor of each tells it from those after it.
_KINDS = (
    _Kind(5, "F8Q8", (".num_blocks", ".shape"), _read_f8q8),
    _Kind(
        3,
        "FP8",
        (".dequant_w_scale",),
        lambda layer: layer.kept("", ".dequant_w_scale"),
    ),
    _Kind(4, "AFQ", (".biases", ".scales", ".bits", ".group_size"), _read_afq),
    _Kind(2, "HQQ", (".zeros", ".scales", ".shape", ".bits", ".group_size", ".axis"), _read_hqq),
    _Kind(0, "GGUF", (".dtype", ".shape"), _read_gguf),
    _Kind(6, "MXFP4", (".scales",), lambda layer: layer.kept("", ".scales")),
    _Kind(1, "plain", (), lambda layer: layer.kept("")),
)
#: Every tensor of a layer that is not its bias, by the end of its name.
_ROLES = (
    "",
    ".format",
    *dict.fromkeys(role for kind in _KINDS for role in kind.roles),
    ".dequant_x_scale",
    ".quant_scale",
    ".optimization_steps",
    ".round_zeros",
    ".channel_wise",
)


def _small_values(reader: ByteReader, tensors: Tensors, *, is_local: bool) -> dict[str, bytes]:
    """The bytes of the small tensors that describe layers, by name.

    The numbers of kinds lie between the weights, where each is a request of its own to the hub:
    from there they are left out.
    """
    wanted = [
        each
        for each in tensors.values()
        if each.size_bytes <= _SMALL_BYTES and (is_local or not each.name.endswith(".format"))
    ]
    runs: list[list[TensorInfo]] = []
    for each in sorted(wanted, key=lambda each: each.offset_bytes):
        if runs and each.offset_bytes - _end(runs[-1][-1]) <= _GAP_BYTES:
            runs[-1].append(each)
        else:
            runs.append([each])
    small_values = {}
    for run in runs:
        first = run[0].offset_bytes
        data = reader.read(first, _end(run[-1]) - first)
        for each in run:
            small_values[each.name] = data[each.offset_bytes - first : _end(each) - first]
    return small_values


def _end(info: TensorInfo) -> int:
    return info.offset_bytes + info.size_bytes


def _check_version(values: Values, before: Values, file: str) -> None:
    """Raises Unsupported for a version that is not read, NotReadable if shards differ in it."""
    given = [values.get(name) for name in VERSION_TENSORS]
    if not any(given):
        return
    if not all(value and len(value) == 4 for value in given):
        raise NotReadable("the version of UQFF is not three integers", where=file)
    major, minor, patch = (int.from_bytes(value or b"", "little") for value in given)
    if major != VERSION[0] or minor > VERSION[1]:
        raise Unsupported(
            f"UQFF {major}.{minor}.{patch} is not supported",
            where=file,
            hint="the versions that are read are 1.0 to 1.2",
        )
    if any(before.get(name, values[name]) != values[name] for name in VERSION_TENSORS):
        raise NotReadable("the shards have different versions of UQFF", where=file)


def _old(file: str) -> Unsupported:
    return Unsupported(
        "UQFF 0.x, whose layers have no names, is not supported",
        where=file,
        hint="write the model again: mrs quantize -m ID --isq q4k -o FOLDER",
    )


def _without(tensors: Tensors, names: Sequence[str]) -> Tensors:
    return {name: info for name, info in tensors.items() if name not in names}
