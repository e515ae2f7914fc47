"""The CUDA kernels tried in a process of their own, which they may crash.

A kernel that reads or writes where it must not spoils all of a process's work on its GPU, and one
that never ends cannot be stopped in any other way. So this module is also a program: it tests one
kind of kernels, and times products. Its memory is free again when it has ended, which is before the
weights of a model are loaded: a plan need not count it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from mrs.kernels.cuda.launcher import device_launcher
from mrs.kernels.cuda.self_test import row_reason, unavailable_reason
from mrs.kernels.cuda.timing import seconds_of_products
from mrs.kernels.triton.self_test import layouts_to_check, products_unavailable_reason
from mrs.quantization.gguf.fields import PLANE_LAYOUTS
from mrs.units import human_bytes

#: What is tried beside the products of each format: kernels that norm, rotate and route rows.
ROWS = "rows"
#: A trial that takes longer hangs; most of it is the compiling of about ten kernels.
LIMIT_S = 120
#: A process that is killed while its GPU computes may take so long to end.
_END_S = 10
#: Of the GPU. The matrices that are timed take up to 600 MB.
_FREE_BYTES = 1 << 30
_STARTED = b"started"
_REASON_CHARACTERS = 200
_COMMAND = (sys.executable, "-P", "-W", "ignore", "-m", "mrs.quantization.cuda_trial")


class Verdict(msgspec.Struct, frozen=True):
    """What a trial of one kind of kernels has found.

    reason   why the kernels must not be used; None if they are right
    cuda_s   seconds of a product of each of `timing.TOKENS`; None if it was not timed
    other_s  the same by the kernels that would replace them
    hangs    whether the reason is that it did not end in time
    """

    reason: str | None
    cuda_s: tuple[float, float] | None = None
    other_s: tuple[float, float] | None = None
    hangs: bool = False

    @property
    def is_slower(self) -> bool:
        """Whether other kernels take less time, however many tokens there are."""
        if self.cuda_s is None or self.other_s is None:
            return False
        return all(own > other for own, other in zip(self.cuda_s, self.other_s, strict=True))


class CannotTry(Exception):
    """A trial did not begin: this says nothing about the kernels."""


def tried(device: torch.device, kind: str) -> Verdict:
    """The verdict of a new process about products of the format `kind`, or about ROWS.

    It takes seconds, and at most LIMIT_S. A process that crashes or hangs is a reason. Raises
    CannotTry.
    """
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        process = subprocess.Popen(
            [*_COMMAND, str(device.index or 0), kind],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C reaches only this process, which ends it
        )
    except OSError as error:
        raise CannotTry(f"its process did not start: {error.strerror or error}") from error
    hangs, output, errors = False, b"", b""
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        hangs = True
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=_END_S)
    finally:
        process.kill()
    lines = output.splitlines()
    reason = f"no end after {LIMIT_S} s" if hangs else _end_of(process.returncode, errors)
    if _STARTED not in lines:
        raise CannotTry(reason or "its process said nothing")
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(lines[-1], type=Verdict)
        if reason is None or found.reason is not None:
            return found
    what = reason or "their process said nothing"
    return Verdict(f"the CUDA kernels failed: {what}", hangs=hangs)


def _end_of(code: int, errors: bytes) -> str | None:
    """How a process ended that did not end well, and the last line it wrote to standard error."""
    if not code:
        return None
    how = f"exit code {code}"
    if code < 0:
        how = f"killed by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    said = errors.decode(errors="replace").strip().rpartition("\n")[2][:_REASON_CHARACTERS]
    return f"{how}: {said}" if said else how


def try_here(device: torch.device, kind: str) -> Verdict:
    """Test the kernels of a kind in this process, and if they are right, time products."""
    if kind == ROWS:
        return Verdict(row_reason(device))
    layout = PLANE_LAYOUTS.get(kind)
    reason = unavailable_reason(device, {kind: layout})
    if reason is not None:
        return Verdict(reason)
    if layout and products_unavailable_reason(device, layouts_to_check(layout)) is not None:
        return Verdict(None)  # nothing else multiplies blocks
    own, other = seconds_of_products(kind, layout, device, device_launcher(device))
    return Verdict(None, (own[0], own[1]), (other[0], other[1]))


def main(index: str, kind: str) -> None:
    """Try the kernels on GPU `index`, and say on standard output when it begins and the verdict."""
    if hasattr(signal, "alarm"):
        signal.alarm(LIMIT_S + _END_S)  # if nobody is there to end this process
    device = torch.device("cuda", int(index))
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU")
    torch.cuda.set_device(device)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    if free_bytes < _FREE_BYTES:
        sys.exit(
            f"a test takes {human_bytes(_FREE_BYTES)} of the GPU's memory, of which "
            f"{human_bytes(free_bytes)} are free"
        )
    print(_STARTED.decode(), flush=True)
    print(msgspec.json.encode(try_here(device, kind)).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
