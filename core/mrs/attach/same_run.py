"""When a loaded model answers as a run that loaded it itself would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import msgspec

from mrs.devices.cpu_path import PATH_VARIABLE, TORCH_VARIABLE
from mrs.devices.variables import GPU_PATH_VARIABLE, GRAPHS_VARIABLE, LOGICAL_VARIABLE
from mrs.request import DEFAULT_SEQ_TOKENS, RunRequest
from mrs.source.find import side_files, wanted_files
from mrs.source.locate import locate, locate_tokenizer
from mrs.source.reader import expanded

#: Fields that say nothing of replies, or that are compared in another way.
_APART = ("source", "seed", "target_gap_s", "reserved_bytes", "max_models", "server", "max_seq_len")
#: Fields that only make replies faster or cheaper: a run that names none takes what is there.
_SPEED = (
    "max_seqs", "max_batch_size", "prefix_cache_n", "prefix_cache_size", "prefix_cache_dir",
    "prefix_cache_dir_size", "speculate", "mtp", "calibration",
)  # fmt: skip
#: Fields of work that a run does for itself.
_OWN = ("cluster", "adapters", "draft_model", "plan_file", "write_uqff", "devices")
#: Fields that are paths of files.
_FILES = ("chat_template", "jinja_explicit", "imatrix", "calibration_file")
#: Variables that choose devices and their kernels.
_VARIABLES = (
    PATH_VARIABLE, TORCH_VARIABLE, GPU_PATH_VARIABLE, LOGICAL_VARIABLE, GRAPHS_VARIABLE,
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


class RunIdentity(msgspec.Struct, frozen=True):
    """What decides about the replies of a run.

    program    when which files of the program were changed
    files      path, bytes and time of change of every file that is read
    settings   fields of the request by name, as text
    given      those of them that are not the default
    own        fields of what a run does for itself; a run with any does not attach
    seq_tokens the length of a sequence that is planned at least
    """

    program: tuple[tuple[str, int, int], ...]
    variables: dict[str, str]
    files: tuple[tuple[str, int, int], ...]
    settings: dict[str, str]
    given: tuple[str, ...]
    own: tuple[str, ...]
    seq_tokens: int


def run_identity(request: RunRequest) -> RunIdentity | None:
    """The identity of a run of `request`; None if some of its files are not on this machine.

    Raises MrsError for a model that cannot be found.
    """
    paths = _paths(request)
    if paths is None:
        return None
    if request.isq is not None:
        request = replace(request, isq=request.isq.lower())
    compared = [each for each in fields(RunRequest) if each.name not in (*_APART, *_FILES)]
    values = {each.name: getattr(request, each.name) for each in compared}
    given = tuple(each.name for each in compared if values[each.name] != each.default)
    return RunIdentity(
        program=_program(),
        variables={name: os.environ.get(name, "") for name in _VARIABLES},
        files=tuple(map(_stamp, paths)),
        settings={name: repr(value) for name, value in values.items()},
        given=given,
        own=tuple(name for name in _OWN if name in given),
        seq_tokens=request.max_seq_len or DEFAULT_SEQ_TOKENS,
    )


def difference(wanted: RunIdentity, loaded: RunIdentity, most_tokens: int) -> str:
    """Why a loaded model does not answer for a run; empty if it does.

    `most_tokens` is how many the model can take.
    """
    if wanted.own:
        return f"the run has {_flag(wanted.own[0])}"
    if loaded.own:
        return f"the server has {_flag(loaded.own[0])}"
    if wanted.files != loaded.files:
        return "its model is another one, or has changed"
    if wanted.program != loaded.program:
        return "it is another version of the program"
    for name, value in wanted.variables.items():
        if value != loaded.variables.get(name):
            return f"{name} differs"
    for name, value in wanted.settings.items():
        if name in _SPEED and name not in wanted.given:
            continue
        if value != loaded.settings.get(name):
            return f"{_flag(name)} differs"
    if loaded.seq_tokens < min(wanted.seq_tokens, most_tokens):
        return f"it is planned for {loaded.seq_tokens} tokens"
    return ""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _paths(request: RunRequest) -> list[Path] | None:
    source, folder = locate(request.source)
    names = wanted_files(source, folder)
    folder = folder.cached(names)
    if folder.path is None:
        return None
    paths = [folder.path / name for name in names]
    if (tokenizer := locate_tokenizer(source)) is not None:
        tokenizer = tokenizer.cached(side_files(tokenizer))
        if tokenizer.path is None:
            return None
        paths += (tokenizer.path / name for name in side_files(tokenizer))
    given = (source.tokenizer_json, *(getattr(request, name) for name in _FILES))
    return [*paths, *(expanded(path) for path in given if path is not None)]


def _stamp(path: Path) -> tuple[str, int, int]:
    """A file that is missing differs from every other."""
    try:
        state = path.stat()
    except OSError:
        return str(path), -1, -1
    return os.path.realpath(path), state.st_size, state.st_mtime_ns


@cache
def _program() -> tuple[tuple[str, int, int], ...]:
    """The package's folder, how many files of code it has, and when the last one was changed."""
    folder = Path(__file__).parent.parent
    times = [entry.stat().st_mtime_ns for entry in _code(folder)]
    return ((str(folder), len(times), max(times)),)


def _code(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so", ".dylib")):
                yield entry
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _code(Path(entry.path))
