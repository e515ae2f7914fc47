"""`mrs ps` and `mrs stop`: the servers that this user runs on this machine.

Each has a file in the folder of the user's state while it runs.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mrs.errors import ExitCode, NotReadable, UsageError
from mrs.process.files import replace_file
from mrs_cli.chat.state_folder import state_folder
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.render.safe_text import json_text, printable, table

#: Start times of one process, as the system rounds them, differ by less.
_SAME_TIME_S = 1.0
#: The socket of a server has the name of its file with this suffix.
_SOCKET = ".sock"


@dataclass(frozen=True)
class RunningServer:
    """`started` is when the process began, in seconds since 1970: another one may get its id."""

    pid: int
    started: float
    url: str
    models: tuple[str, ...]


@contextmanager
def announced(url: str, models: Sequence[str]) -> Iterator[Path | None]:
    """This process is a server that `running_servers` lists, if its file can be written.

    Gives the path of the socket on which it may answer runs.
    """
    import psutil

    server = RunningServer(os.getpid(), psutil.Process().create_time(), url, tuple(models))
    path: Path | None = None
    with suppress(OSError):
        path = _folder() / f"{server.pid}.json"
        replace_file(path, [json_text(asdict(server)).encode()])
    try:
        yield path and path.with_suffix(_SOCKET)
    finally:
        if path is not None:
            _forget(path)


def sockets() -> list[Path]:
    """The sockets on which servers answer runs, the newest first; of some, nobody may listen."""
    try:
        return sorted(_folder().glob(f"*{_SOCKET}"), key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []


def _forget(path: Path) -> None:
    for each in (path, path.with_suffix(_SOCKET)):
        each.unlink(missing_ok=True)


def running_servers() -> list[RunningServer]:
    """The servers that run, in the order of their start; files of others are deleted."""
    try:
        paths = list(_folder().glob("*.json"))
    except OSError:
        return []
    servers = []
    for path in paths:
        server = _read(path)
        if server is not None and _runs(server):
            servers.append(server)
        else:
            _forget(path)
    return sorted(servers, key=lambda server: server.started)


def list_servers(environment: Environment, output: OutputFlags) -> ExitCode:
    """Prints the servers that run."""
    servers = running_servers()
    if output.json:
        text = json_text({"servers": list(map(asdict, servers))})
    elif servers:
        rows = [("pid", "address", "models")]
        rows += [(str(each.pid), each.url, ", ".join(each.models)) for each in servers]
        text = "\n".join(map(printable, table(rows, right={0})))
    else:
        text = "no server of yours runs; mrs serve -m ID starts one"
    environment.stdout.write(text + "\n")
    return ExitCode.DONE


def stop_servers(environment: Environment, names: Sequence[str]) -> ExitCode:
    """Asks servers to stop, as Ctrl-C does: the only one, or those named by model, pid or all."""
    servers = running_servers()
    chosen = [server for server in servers if _is_meant(server, names)]
    if not names and len(servers) > 1:
        known = ", ".join(f"{each.pid} ({', '.join(each.models)})" for each in servers)
        raise UsageError("several servers run", where=known, hint="name a pid, a model or all")
    if not chosen:
        what = f"no server of yours is {' or '.join(names)}" if names else "no server of yours runs"
        raise NotReadable(what, hint="mrs ps lists them")
    for server in chosen:
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(server.pid, signal.SIGTERM)
        line = f"stopping {', '.join(server.models)} at {server.url} (pid {server.pid})"
        environment.stdout.write(printable(line) + "\n")
    return ExitCode.DONE


def _is_meant(server: RunningServer, names: Sequence[str]) -> bool:
    return not names or bool({"all", str(server.pid), server.url, *server.models} & set(names))


def _folder() -> Path:
    folder = state_folder() / "servers"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _read(path: Path) -> RunningServer | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return RunningServer(**{**fields, "models": tuple(map(str, fields["models"]))})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _runs(server: RunningServer) -> bool:
    import psutil

    try:
        return abs(psutil.Process(server.pid).create_time() - server.started) < _SAME_TIME_S
    except (psutil.Error, TypeError, ValueError):
        return False
