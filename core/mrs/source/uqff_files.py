"""Finds the UQFF files of a model: numbered shards, and the file of what is not quantized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mrs.errors import NotReadable
from mrs.quantization.isq import ISQ_NAMES, isq_name, parse_isq
from mrs.source.folder import Folder, read_json

RESIDUAL = "residual.safetensors"
REPORT = "uqff_report.json"
SUFFIX = ".uqff"
#: The key of a header's metadata for the SHA-256 of the tensors' bytes.
DIGEST = "mrs.sha256"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,5})\.uqff")


class Written(NamedTuple):
    """What the report and a header say of one file that this program wrote."""

    size_bytes: int
    sha256: str


def check_set(folder: Folder, written: Mapping[str, Written | None]) -> None:
    """Raises NotReadable if files of several runs are together.

    `written` is what the headers say of shards and of the residual file; None of files of other
    programs. The report, which is written last, must say the same of each shard and of the
    residual file that was written with it.
    """
    manifests = [(shards, _manifest(output)) for output, shards in _outputs(folder)]
    for file in written:
        if file == RESIDUAL:
            continue
        listed = next((manifest for shards, manifest in manifests if file in shards), {})
        for name in (file, RESIDUAL):
            if listed.get(name) != written[name]:
                raise NotReadable(
                    f"{name} is not the file that {REPORT} lists with {file}"
                    if listed
                    else f"{file} and {RESIDUAL} are not listed together in {REPORT}",
                    where=folder.label,
                    hint="mrs quantize was interrupted, or files were exchanged: write them again",
                )


def uqff_files(folder: Folder, names: Iterable[str]) -> tuple[str, ...]:
    """The named files, with all shards of a set if one of them is named, and the residual file.

    A name is that of a file, a file without the number of a shard, or what was quantized to, such
    as `q4k` or 4. Raises NotReadable if a file is missing.
    """
    sets = [_shards(folder, name) for name in names]
    files = dict.fromkeys(file for each in sets for file in each)
    missing = [file for file in (*files, RESIDUAL) if not folder.has(file)]
    if missing:
        raise NotReadable(
            f"no file {missing[0]}",
            where=folder.label,
            hint="a model in UQFF is a folder with its shards and residual.safetensors",
        )
    return (*files, RESIDUAL)


def only_uqff(folder: Folder) -> str | None:
    """The UQFF file to take if none is named: the first of the only set in a folder."""
    names = [name for name in folder.names() if name.endswith(SUFFIX)]
    if not names or not folder.has(RESIDUAL):
        return None
    shards = _shards(folder, names[0])
    return shards[0] if set(shards) == set(names) else None


def _shards(folder: Folder, name: str) -> tuple[str, ...]:
    first = next((each for each in _spellings(name) if folder.has(each)), None)
    if first is None:
        uqff_names = [each for each in folder.names() if each.endswith(SUFFIX)]
        hint = (
            f"there are {', '.join(uqff_names[:8])}"
            if uqff_names
            else "there is no .uqff file at all"
        )
        raise NotReadable(f"no file {name}", where=folder.label, hint=hint)
    for listed in _reported(folder):
        if first in listed:
            return listed
    match = _SHARD.fullmatch(first)
    if match is None:
        return (first,)
    stem = match["stem"]
    siblings = (_SHARD.fullmatch(each) for each in folder.names())
    numbers = [int(each["number"]) for each in siblings if each and each["stem"] == stem]
    last = max(numbers, default=int(match["number"]))
    return tuple(f"{stem}-{number}{SUFFIX}" for number in range(last + 1))


def _spellings(name: str) -> Iterator[str]:
    """The files that a name may mean."""
    stem = name.removesuffix(SUFFIX)
    yield name
    yield f"{stem}-0{SUFFIX}"
    if stem.lower() in ISQ_NAMES:
        bits = stem.lower()
        yield f"{isq_name(parse_isq(bits).name)}-0{SUFFIX}"
        yield f"afq{bits}-0{SUFFIX}"


def _reported(folder: Folder) -> Iterator[tuple[str, ...]]:
    """The sets of shards that the report of the files lists."""
    return (shards for _, shards in _outputs(folder))


def _outputs(folder: Folder) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """The entries of the report with their shards, whatever else it says of them."""
    outputs = (read_json(folder, REPORT) or {}).get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        shards = output.get("shards") if isinstance(output, dict) else None
        if isinstance(shards, list) and all(isinstance(each, str) for each in shards):
            yield output, tuple(each for each in shards if "/" not in each and "\\" not in each)


def _manifest(output: Mapping[str, Any]) -> dict[str, Written]:
    """What an entry of the report says of files; empty for those of other programs."""
    files = output.get("files")
    return {
        name: Written(each["size_bytes"], each["sha256"])
        for name, each in (files.items() if isinstance(files, dict) else ())
        if isinstance(each, dict) and each.keys() >= {"size_bytes", "sha256"}
    }
