"""Walls around the process of chat templates: what the system lets it do, whatever it runs.

They are raised when that process has imported all that it needs: behind them it reads standard
input, writes standard output and takes memory, and nothing more. Each system has some of the walls,
and `raise_walls` says which stand.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

if sys.platform != "win32":
    import resource

#: All walls, in the order in which they are raised, and what each is.
WALLS = {
    "namespaces": "namespaces (no network, no rights)",
    "Landlock": "Landlock (no files)",
    "limits": "limits of memory, files and processes",
    "seccomp": "seccomp (few system calls)",
}

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF, _LANDLOCK_VERSION = 444, 446, 1
#: Number of rights to files (lowest bits) by the version of Landlock that added the last of them.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
_TCP_RIGHTS, _SCOPES = 0b11, 0b11

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
#: The kernel's audit number of each machine for which there is a filter.
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: The system calls that Python makes for text, with their numbers on each of these machines.
_CALLS = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "setitimer": (38, 103),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "clock_gettime": (228, 113),
    "gettimeofday": (96, 169),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "exit": (60, 93),
    "exit_group": (231, 94),
}


def raise_walls(max_bytes: int) -> list[str]:
    """Leave this process `max_bytes` of memory and little else; the names of walls that stand.

    What a system lacks or forbids is left out. There is no way back.
    """
    walls: dict[str, Callable[[], None]] = {"limits": lambda: _limit(max_bytes)}
    if sys.platform == "linux":
        # In this order: Landlock needs a file for a moment, and seccomp forbids all of these.
        walls = {
            "namespaces": _leave_namespaces,
            "Landlock": _forbid_files,
            **walls,
            "seccomp": _forbid_calls,
        }
    standing = []
    for name, build in walls.items():
        with suppress(OSError, ValueError, AttributeError):
            build()
            standing.append(name)
    return standing


def _limit(max_bytes: int) -> None:
    """No further file or process, nothing written to files, no image of memory on a disk."""
    if sys.platform == "win32":
        raise OSError("Windows has no such limits")
    limits = {
        "RLIMIT_NOFILE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_AS": max_bytes,  # last: macOS may refuse it
    }
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _leave_namespaces() -> None:
    """A user without rights over anything outside, in a network without interfaces."""
    _checked(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC))


def _forbid_files() -> None:
    """Landlock rules that allow no file, no TCP port, and no signal to other processes."""
    libc = _libc()
    version = _checked(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))
    files = (1 << max(bits for least, bits in _FILE_RIGHTS.items() if least <= version)) - 1
    fields = [files, *[_TCP_RIGHTS] * (version >= 4), *[_SCOPES] * (version >= 6)]
    handled = struct.pack(f"{len(fields)}Q", *fields)
    rules = _checked(libc.syscall(_LANDLOCK_CREATE_RULESET, handled, len(handled), 0))
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0))
    _checked(libc.close(rules))


def _forbid_calls() -> None:
    """Of the system's calls, only those in `_CALLS`; others fail with EPERM."""
    machine = platform.machine()
    if machine not in _MACHINES or struct.calcsize("P") != 8:
        raise OSError(f"no filter for {machine}")
    code = _call_filter(machine)
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    libc = _libc()
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0))


def _call_filter(machine: str) -> bytes:
    """The filter as instructions of classic BPF, of 8 bytes each.

    A call of another instruction set ends the process: its numbers mean something else.
    """
    column = list(_MACHINES).index(machine)
    calls = [numbers[column] for numbers in _CALLS.values()]
    ask = [(_JUMP_IF_EQUAL, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    steps = [
        (_LOAD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        *ask,
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    """Raises OSError if a call to libc failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused by the system")
    return result
