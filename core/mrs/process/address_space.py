"""A check of the limit on the address space: torch crashes silently if the limit is too low."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mrs.errors import DoesNotFit
from mrs.units import human_bytes

#: Address space of torch and the modules that load with it, in addition to torch's libraries.
_OTHER_BYTES = 256 * 2**20


def require_address_space_for_torch() -> None:
    """Raise DoesNotFit if a limit such as `ulimit -v` is too low to import torch."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return
    needed_bytes = _used_bytes() + _library_bytes() + _OTHER_BYTES
    if needed_bytes > limit_bytes:
        raise DoesNotFit(
            f"torch alone needs {human_bytes(needed_bytes)} of address space, but the limit is "
            f"{human_bytes(limit_bytes)}",
            missing_bytes=needed_bytes - limit_bytes,
            hint="raise the limit: ulimit -v",
        )


def _used_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().vms)


def _library_bytes() -> int:
    torch_spec = find_spec("torch")
    folders = (torch_spec and torch_spec.submodule_search_locations) or ()
    libraries = (file for folder in folders for file in Path(folder, "lib").glob("*.so*"))
    return sum(file.stat().st_size for file in libraries)
