"""Whether the CUDA kernels are used on a device: each kind is tried once on each kind of GPU."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
import torch

import mrs.kernels
from mrs.devices.gpu_path import gpu_path
from mrs.devices.measurements import cache_file, read_entries, write_entries
from mrs.devices.nvidia import driver_version
from mrs.devices.variables import GPU_PATH_VARIABLE
from mrs.kernels.cuda.launcher import architecture_of
from mrs.kernels.cuda.self_test import missing_reason
from mrs.kernels.workspace.fragments import can_multiply
from mrs.quantization.cuda_trial import ROWS, CannotTry, Verdict, tried

_logger = logging.getLogger(__name__)

FILE_NAME = "cuda_kernels.json"
#: Of a GPU with its software and of these kernels; beyond it, those that were tried first go.
_MOST_ENTRIES = 16
#: What a verdict depends on: these kernels, and those that would replace them.
_FOLDERS = ("cuda", "triton", "workspace")
#: Where a trial hung in this process: no further one keeps a person waiting.
_hanging: set[torch.device] = set()


def try_cuda_kernels(weights: Iterable[tuple[torch.device, str, tuple[int, ...]]]) -> None:
    """Decide about all kernels for weights of these formats and shapes, before they are loaded.

    A trial takes memory of the GPU, which is free again when this returns.
    """
    for device, name, shape in weights:
        if device.type == "cuda":
            has_cuda_rows(device)
            if len(shape) == 2 and can_multiply(name, *shape):
                has_cuda_products(device, name)


@cache
def has_cuda_products(device: torch.device, name: str) -> bool:
    """Whether the kernels multiply weights of a format on a device.

    They do if they are right there, and not slower than others; `MRS_GPU_PATH` may exclude them, or
    have them although they are slower. It warns if they are wrong, and not where they cannot be:
    other kernels are there.
    """
    return _is_used(device, name, f"multiply {name}")


@cache
def has_cuda_rows(device: torch.device) -> bool:
    """The same of the kernels that norm rows, rotate heads and choose experts."""
    return _is_used(device, ROWS, "norm and rotate")


def _is_used(device: torch.device, kind: str, what: str) -> bool:
    path = gpu_path()
    if device.type != "cuda" or path in ("triton", "torch"):
        return False
    reason = missing_reason(device)
    if reason is not None:
        if path == "cuda":
            _logger.warning("%s: %s is cuda, but %s", device, GPU_PATH_VARIABLE, reason)
        return False
    try:
        found = verdict(device, kind)
    except CannotTry as error:
        found = Verdict(f"they could not be tested: {error}")
    if found.reason is not None:
        _logger.warning("%s: CUDA kernels do not %s: %s", device, what, found.reason)
        return False
    if found.is_slower and path != "cuda":
        _logger.info("%s: CUDA kernels do not %s: others are faster", device, what)
        return False
    return True


def verdict(device: torch.device, kind: str, *, retries_failure: bool = False) -> Verdict:
    """What a trial found about products of the format `kind` or about ROWS, now or earlier.

    Verdicts are kept in the platform's cache folder, for each GPU by name, its driver, torch and
    these kernels. Raises CannotTry if there is none and none can be made.
    """
    path, key = cache_file(FILE_NAME), _key(device)
    known = _known(path, key)
    found = known.get(kind)
    if found is None or (retries_failure and found.reason is not None):
        if device in _hanging:
            raise CannotTry("another of them hung")
        _announce(device)
        found = tried(device, kind)
        if found.hangs:
            _hanging.add(device)
        entries = read_entries(path)
        entries.pop(key, None)
        kept = list(entries.items())[1 - _MOST_ENTRIES :]
        own = msgspec.to_builtins({**_known(path, key), kind: found})
        write_entries(path, {**dict(kept), key: own})
    return found


@cache
def _announce(device: torch.device) -> None:
    _logger.warning("%s: its CUDA kernels are tested first; later runs need not wait", device)


def _known(path: Path, key: str) -> dict[str, Verdict]:
    """The verdicts of a file; none if its entry is damaged."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(read_entries(path).get(key, {}), dict[str, Verdict])
    return {}


def _key(device: torch.device) -> str:
    architecture = architecture_of(*torch.cuda.get_device_capability(device))
    return ", ".join(
        (
            torch.cuda.get_device_name(device),
            architecture,
            f"driver {driver_version()}",
            f"torch {torch.__version__}",
            f"kernels {_digest()}",
        )
    )


@cache
def _digest() -> str:
    """A hash of the text of the kernels."""
    found = hashlib.sha256()
    root = Path(mrs.kernels.__file__).parent
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".h"):
                text = path.read_bytes()
                found.update(f"\n{path.relative_to(root)} {len(text)}\n".encode() + text)
    return found.hexdigest()[:16]
