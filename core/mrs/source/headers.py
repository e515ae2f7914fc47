"""Joins the headers of a model's files to one set of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mrs.errors import NotReadable, Unsupported
from mrs.source.checkpoint import TensorInfo
from mrs.source.folder import Folder

if TYPE_CHECKING:
    from mrs.source.gguf_header import GgufHeader

#: Headers of shards that are requested concurrently.
PARALLEL_REQUESTS = 8
Header = TypeVar("Header")


def safetensors_tensors(
    folder: Folder, files: Sequence[str], weight_map: Mapping[str, str]
) -> dict[str, TensorInfo]:
    """All tensors of the files; with an index, each one must be in the file that it lists."""
    from mrs.source.safetensors_header import read_safetensors_header

    headers = _each(folder, files, lambda name: read_safetensors_header(folder.open(name), name))
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors:
            if weight_map.get(tensor.name, tensor.file) == tensor.file:
                _add(tensors, tensor, folder)
    for name, file in weight_map.items():
        if name not in tensors:
            raise NotReadable(f"{file} lacks the tensor {name} of the index", where=folder.label)
    return tensors


def module_tensors(folder: Folder, files: Sequence[str]) -> dict[str, TensorInfo]:
    """The tensors of files in subfolders; the names of their tensors begin with the subfolder's."""
    named: dict[str, TensorInfo] = {}
    for file in files:
        inside = file.rpartition("/")[0]
        for tensor in safetensors_tensors(folder, [file], {}).values():
            _add(named, tensor._replace(name=f"{inside}/{tensor.name}"), folder)
    return named


def gguf_tensors(
    folder: Folder, files: Sequence[str]
) -> tuple[Mapping[str, Any], dict[str, TensorInfo]]:
    """Metadata of the (first) file and all tensors. Raises NotReadable if a shard is missing."""
    from mrs.source.gguf_header import read_gguf_header

    headers = _each(folder, files, lambda name: read_gguf_header(folder.open(name), name))
    for header, file in zip(headers, files, strict=True):
        if header.byte_order == "big":
            raise Unsupported(
                "a big-endian GGUF file", where=file, hint="convert it to little-endian"
            )
    headers = _in_order(headers, files, folder)
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors:
            _add(tensors, tensor, folder)
    _check_total(headers[0].metadata, len(tensors), folder)
    return headers[0].metadata, tensors


def joined(
    tensors: Mapping[str, TensorInfo], more: Mapping[str, TensorInfo], folder: Folder
) -> dict[str, TensorInfo]:
    """The union of two sets of tensors. Raises NotReadable if a name is in both."""
    both = dict(tensors)
    for tensor in more.values():
        _add(both, tensor, folder)
    return both


def _each(folder: Folder, files: Sequence[str], read: Callable[[str], Header]) -> list[Header]:
    if folder.path is not None or len(files) == 1:
        return [read(file) for file in files]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        return list(pool.map(read, files))


def _add(tensors: dict[str, TensorInfo], tensor: TensorInfo, folder: Folder) -> None:
    other = tensors.get(tensor.name)
    if other is not None:
        raise NotReadable(
            f"tensor {tensor.name} is both in {other.file} and {tensor.file}", where=folder.label
        )
    tensors[tensor.name] = tensor


def _in_order(headers: list[GgufHeader], files: Sequence[str], folder: Folder) -> list[GgufHeader]:
    """Shards by their number: the first one carries the metadata."""
    for header, file in zip(headers, files, strict=True):
        count = max(1, _count(header.metadata, "split.count", 1, file))
        if count != len(files):
            raise NotReadable(
                f"{file} is one of {count} shards, and {len(files)} were given",
                where=folder.label,
                hint="name the first shard alone, or all of them separated by spaces",
            )
    numbers = [_count(h.metadata, "split.no", 0, f) for h, f in zip(headers, files, strict=True)]
    if sorted(numbers) != list(range(len(files))):
        raise NotReadable(f"the files are shards number {numbers}", where=folder.label)
    return [headers[numbers.index(number)] for number in range(len(files))]


def _check_total(metadata: Mapping[str, Any], num_tensors: int, folder: Folder) -> None:
    expected = _count(metadata, "split.tensors.count", num_tensors, folder.label)
    if expected != num_tensors:
        raise NotReadable(
            f"the shards have {num_tensors} tensors instead of {expected}", where=folder.label
        )


def _count(metadata: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = metadata.get(key, default)
    if type(value) is not int:
        raise NotReadable(f"{key} is {value!r}, no count", where=where)
    return value
