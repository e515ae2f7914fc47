"""`mrs doctor`: what of the program works on this machine, and what to do about the rest."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from mrs.errors import MrsError
from mrs.units import GIB, human_bytes

State = Literal["ok", "note", "bad"]

#: The hub has to answer within this time.
HUB_TIMEOUT_S = 3.0
#: Less free space than this holds few models.
SCARCE_DISK_BYTES = 10 * GIB
_COMPILE = f"{sys.executable} -m mrs.kernels.cpu.native.compile"
#: Packages that are not required, and what each is for.
_OPTIONAL = {"hf_xet": "faster downloads from the hub"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its state, what was found, and a cure unless all is well."""

    name: str
    state: State
    found: str
    cure: str = ""


def examine() -> Iterator[Check]:
    """All checks, one after another; together they take about a second, without a hub longer."""
    parts: tuple[Callable[[], Iterator[Check]], ...] = (
        _processor,
        _native,
        _accelerators,
        _memory,
        _hub,
        _disk,
        _packages,
        _templates,
    )
    for part in parts:
        try:
            yield from part()
        except MrsError as error:
            yield Check(part.__name__.strip("_"), "bad", error.what, error.hint)


def _processor() -> Iterator[Check]:
    from mrs.devices.cpu_path import cpu_path, cpu_paths
    from mrs.devices.processor import cpu_name, cpu_threads

    used, paths = cpu_path(), ", ".join(cpu_paths())
    text = f"{cpu_name()}, {cpu_threads()} threads, path {used} of {paths}"
    cure = "unset MRS_CPU_PATH, or use a processor with AVX2 or NEON" if used == "torch" else ""
    yield Check("processor", "note" if cure else "ok", text, cure)


def _native() -> Iterator[Check]:
    from mrs.kernels.cpu.library_file import PATH

    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    compiler = compilers[0] if compilers else ""
    if PATH.exists():
        yield Check("native library", "ok", str(PATH))
    else:
        cure = f"run {_COMPILE}" if compiler else f"install a C compiler, then run {_COMPILE}"
        yield Check("native library", "bad", "not built: decoding is many times slower", cure)
    cure = "" if compiler or PATH.exists() else "install gcc or clang"
    state: State = "ok" if compiler else "note"
    yield Check("compiler", state, shutil.which(compiler) or "none", cure)


def _accelerators() -> Iterator[Check]:
    from mrs.devices.probe import probe_devices

    devices = [device for device in probe_devices() if device.kind != "cpu"]
    for device in devices:
        yield Check(device.label, "ok", f"{device.name}, {human_bytes(device.total_bytes)}")
    if not devices:
        cure = "with an NVIDIA card, install its driver; nvidia-smi must list the card"
        yield Check("accelerators", "note", "none: models run on the CPU", cure)
    if any(device.kind == "cuda" for device in devices):
        has_triton = find_spec("triton") is not None
        yield Check(
            "Triton",
            "ok" if has_triton else "bad",
            "installed" if has_triton else "missing: quantized weights are slow on this GPU",
            "" if has_triton else "pip install triton",
        )


def _memory() -> Iterator[Check]:
    from mrs.devices.bandwidth import has_room_to_measure, measure_host_bandwidth
    from mrs.devices.host_memory import host_memory

    free = human_bytes(host_memory().available_bytes)
    if not has_room_to_measure():
        yield Check("memory", "bad", f"{free} available", "close other programs")
        return
    speed = f"{measure_host_bandwidth() / 1e9:.1f} GB/s"
    yield Check("memory", "ok", f"{free} available, read at {speed}")


def _hub() -> Iterator[Check]:
    from mrs.request import ModelSource
    from mrs.source.hub_settings import hub_settings

    settings = hub_settings(ModelSource("demo", "safetensors"))
    token = "with a token" if settings.token else "without a token, which gated models need"
    if settings.is_offline:
        yield Check("hub", "note", "offline by HF_HUB_OFFLINE", "unset it to download models")
    elif reason := _unreachable(settings.endpoint):
        cure = "check the network, the proxy and HF_ENDPOINT; local models work without"
        yield Check("hub", "bad", f"{settings.endpoint} does not answer: {reason}", cure)
    else:
        yield Check("hub", "ok", f"{settings.endpoint} answers, {token}")


def _unreachable(address: str) -> str:
    """Why an address does not answer; empty if it does, be it with an error."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, method="HEAD"), timeout=HUB_TIMEOUT_S):
            return ""
    except HTTPError:
        return ""
    except (OSError, HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)
        return getattr(cause, "strerror", None) or str(cause) or type(error).__name__


def _disk() -> Iterator[Check]:
    from mrs.source.hub_settings import default_cache_path

    cache = default_cache_path()
    existing = next(path for path in (cache, *cache.parents, Path("/")) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    text = f"{human_bytes(free_bytes)} free for {cache}{_read_speed()}"
    if not os.access(existing, os.W_OK):
        yield Check("disk", "bad", f"{cache} cannot be written", "set HF_HOME to another folder")
    elif free_bytes < SCARCE_DISK_BYTES:
        yield Check("disk", "note", text, "mrs cache list shows what may be deleted")
    else:
        yield Check("disk", "ok", text)


def _read_speed() -> str:
    """How fast layers that stay on disk are read; empty where the disk cannot be measured."""
    from mrs.devices.disk import MEASURED_BYTES, layers_folder, learn_disk_bandwidth

    folder = layers_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < 2 * MEASURED_BYTES:
            return ""
        return f"; {folder} is read at {learn_disk_bandwidth() / 1e9:.1f} GB/s"
    except OSError:
        return ""


def _packages() -> Iterator[Check]:
    for name, purpose in _OPTIONAL.items():
        is_there = find_spec(name) is not None
        yield Check(
            f"package {name}",
            "ok" if is_there else "note",
            "installed" if is_there else f"missing: {purpose}",
            "" if is_there else f"pip install {name}",
        )


def _templates() -> Iterator[Check]:
    """The walls around the process that runs the chat templates of models."""
    from mrs.text.template_process import renderer
    from mrs.text.walls import WALLS

    standing = renderer.walls()
    missing = [what for name, what in WALLS.items() if name not in standing]
    text = f"confined by: {', '.join(['no environment', *standing])}"
    if missing:
        text += f"; missing: {', '.join(missing)}"
    cure = "use models from people you trust, or a newer Linux that allows these" if missing else ""
    yield Check("chat templates", "note" if missing else "ok", text, cure)
