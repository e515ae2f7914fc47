"""Finds the files of weights in a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.source.address import split_names
from mrs.source.folder import Folder, read_json
from mrs.source.incomplete import AGAIN, unfinished_files

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: A larger index is not requested from the hub: the shards' headers have the same information.
MAX_REMOTE_INDEX_BYTES = 4 * 1024**2
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?:safetensors|gguf)")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
#: Files of other weights in a model's folder.
_OTHER_WEIGHTS = re.compile(
    r"adapter_model|consolidated|optimizer|scheduler|training_args|mmproj|^residual\."
)


def safetensors_files(folder: Folder) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The safetensors files of a model, and its index (tensor name to file; empty without one).

    In this order: the files in the index, `model.safetensors`, a whole set of shards, the only
    safetensors file there is.
    """
    weight_map = _weight_map(folder)
    if weight_map:
        files = tuple(sorted(set(weight_map.values())))
        _check_present(folder, files, f"listed in {INDEX} and not there")
        return files, weight_map
    if folder.has(SINGLE):
        return (SINGLE,), {}
    names = [name for name in _here(folder, ".safetensors") if not _OTHER_WEIGHTS.search(name)]
    sharded = [name for name in names if _SHARD.fullmatch(name)]
    if sharded:
        return complete_shards(folder, sharded[0]), {}
    if len(names) == 1:
        return (names[0],), {}
    if names:
        raise NotReadable(
            f"several safetensors files and no {INDEX}: {_list(names)}", where=folder.label
        )
    raise _no_weights(folder, "safetensors")


def gguf_files(folder: Folder, filenames: Iterable[str]) -> tuple[str, ...]:
    """The named GGUF files, with all shards of a set if one of them is named.

    A quantization, such as `Q4_K_M`, names the file with it. Without a name, the only model in the
    folder.
    """
    split = [part for name in filenames for part in _split(folder, name)]
    asked = [quantized_file(folder, name) or name for name in split]
    if not asked:
        asked = [_only_gguf(folder)]
    for name in asked:
        if not folder.has(name):
            raise _no_such_gguf(folder, name)
    if len(asked) == 1 and _SHARD.fullmatch(asked[0]):
        return complete_shards(folder, asked[0])
    return tuple(dict.fromkeys(asked))


def quantized_file(folder: Folder, quantization: str) -> str | None:
    """The only GGUF model whose name has this quantization, such as `Q4_K_M`; None without one."""
    if quantization.endswith(".gguf"):
        return None
    part = re.compile(rf"(?<![a-z0-9]){re.escape(quantization)}(?![a-z0-9_])", re.IGNORECASE)
    files = [name for name in gguf_models(folder) if part.search(name)]
    return files[0] if len(files) == 1 else None


def complete_shards(folder: Folder, name: str) -> tuple[str, ...]:
    """All shards of the set of `name` (like `x-00001-of-00003.gguf`); all must exist."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return (name,)
    count, suffix = int(match["count"]), name.rpartition(".")[2]
    files = tuple(f"{match['stem']}-{i:05}-of-{count:05}.{suffix}" for i in range(1, count + 1))
    _check_present(folder, files, "missing from the set of shards")
    return files


def gguf_models(folder: Folder) -> list[str]:
    """The GGUF models of a folder: one file name each, the first shard for a set."""
    names = [n for n in folder.names() if n.endswith(".gguf") and not _OTHER_WEIGHTS.search(n)]
    shards = ((name, _SHARD.fullmatch(name)) for name in names)
    return [name for name, shard in shards if shard is None or int(shard["number"]) == 1]


def gguf_projectors(folder: Folder) -> list[str]:
    """The mmproj files of a folder, those in 16 bits first: the most usual precision."""
    names = [n for n in folder.names() if n.endswith(".gguf") and "mmproj" in n.lower()]
    return sorted(names, key=lambda name: ("f16" not in name.lower(), name))


def _weight_map(folder: Folder) -> Mapping[str, str]:
    if folder.path is None and _is_long_index(folder):
        return {}
    index = read_json(folder, INDEX)
    if index is None:
        return {}
    weight_map = index.get("weight_map")
    files = weight_map.values() if isinstance(weight_map, dict) else ()
    if not files or not all(isinstance(file, str) for file in files):
        raise NotReadable(f"{INDEX} has no weight_map of tensors to files", where=folder.label)
    outside = [file for file in files if "/" in file or "\\" in file]
    if outside:
        raise NotReadable(f"{INDEX} lists {outside[0]!r}, outside the folder", where=folder.label)
    return dict(index["weight_map"])


def _is_long_index(folder: Folder) -> bool:
    return (
        folder.has(INDEX)
        and folder.open(INDEX).size_bytes > MAX_REMOTE_INDEX_BYTES
        and any(_SHARD.fullmatch(name) for name in _here(folder, ".safetensors"))
    )


def _here(folder: Folder, suffix: str) -> list[str]:
    return [name for name in folder.names() if name.endswith(suffix) and "/" not in name]


def _split(folder: Folder, name: str) -> list[str]:
    """Splits an argument with several shards."""
    return [name] if folder.has(name) else [*split_names(name)]


def _check_present(folder: Folder, files: Iterable[str], why: str) -> None:
    missing = [file for file in files if not folder.has(file)]
    if missing:
        raise NotReadable(f"{_list(missing)} {why}", where=folder.label, hint=_again(folder))


def _again(folder: Folder) -> str:
    """What to do about missing files; names parts of them, if there are any."""
    parts = unfinished_files(folder)
    return f"{AGAIN} (there is {_list(parts)})" if parts else AGAIN


def _only_gguf(folder: Folder) -> str:
    models = gguf_models(folder)
    if not models:
        raise _no_weights(folder, "gguf")
    if len(models) > 1:
        raise UsageError(
            "which GGUF file?", where=folder.label, hint=f"name one with -f: {_list(models)}"
        )
    return models[0]


def _no_such_gguf(folder: Folder, name: str) -> NotReadable:
    models = gguf_models(folder)
    hint = f"there are {_list(models)}" if models else "there is no .gguf file at all"
    return NotReadable(f"no file {name}", where=folder.label, hint=hint)


def _no_weights(folder: Folder, wanted: str) -> NotReadable | Unsupported:
    names = folder.names()
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if uqff := [name for name in names if name.endswith(".uqff")]:
        return NotReadable(
            "which UQFF file?", where=folder.label, hint=f"name one with -f: {_list(uqff)}"
        )
    other = ".gguf" if wanted == "safetensors" else ".safetensors"
    others = [name for name in names if name.endswith(other)]
    if others:
        selector = "gguf" if wanted == "safetensors" else "plain"
        return NotReadable(
            f"no {wanted} file, but {_list(others)}",
            where=folder.label,
            hint=f"use the {selector} selector",
        )
    if unfinished_files(folder):
        return NotReadable(f"no {wanted} file is complete", where=folder.label, hint=_again(folder))
    if pickles:
        return Unsupported(
            f"only pickled weights, which could execute code: {_list(pickles)}",
            where=folder.label,
            hint="convert them to safetensors, or find a safetensors version",
        )
    return NotReadable(f"no {wanted} file", where=folder.label, hint="is this a model's folder?")


def _list(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
