"""Behind the walls, code that got out of Jinja's sandbox finds nothing to take."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mrs.doctor import machine as doctor
from mrs.errors import Unsupported
from mrs.text import child_process, template_process
from mrs.text.template import ChatTemplate
from mrs.text.template_process import Stopped, TemplateProcess
from mrs.text.walls import WALLS
from support.suites import first

#: The program of the process, but a template is Python code outside any sandbox.
ESCAPED = """import sys
sys.path += sys.argv[2:]
import ctypes, gc, os, resource, signal, socket, subprocess, threading, time
from mrs.text import sandbox
def escaped(request):
    try:
        value = eval(request["source"], dict(globals()))
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
    return value if isinstance(value, dict) else {"text": str(value)}
sandbox._reply = escaped
sandbox.serve(int(sys.argv[1]))"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have fewer walls")


@pytest.fixture(name="escaped")
def _escaped(monkeypatch: pytest.MonkeyPatch) -> Iterator[TemplateProcess]:
    monkeypatch.setattr(child_process, "_PROGRAM", ESCAPED)
    monkeypatch.setenv("MRS_CLUSTER_SECRET", "the secret of a cluster")
    process = TemplateProcess()
    yield process
    process.stop()


def ran(process: TemplateProcess, code: str) -> str:
    return str(process.ask(code, None, 9999)["text"])


def test_the_environment_has_no_secret(escaped: TemplateProcess) -> None:
    """Neither what Python sees nor what the system keeps of it."""
    assert "secret" not in ran(escaped, "os.environ").lower()
    pid = int(ran(escaped, "os.getpid()"))
    if Path("/proc/self/environ").exists():
        block = Path(f"/proc/{pid}/environ").read_bytes()
        names = {entry.partition(b"=")[0] for entry in block.split(b"\0") if entry}
        assert names <= {b"TZ", b"LD_LIBRARY_PATH", b"LC_CTYPE"}
    assert ran(escaped, "os.path.exists('.')") == "False"


REFUSED = (
    "open('/etc/passwd').read()",
    "open('/proc/self/environ').read()",
    f"open('/proc/{os.getpid()}/environ').read()",
    "os.listdir('/')",
    "os.stat('/etc/passwd')",
    "open('/tmp/written', 'w')",
    "os.unlink('/etc/hostname-that-is-not-there')",
    "os.fork()",
    "subprocess.run(['/bin/true'])",
    "os.execv('/bin/true', ['true'])",
    "os.kill(os.getppid(), 0)",
    "os.setuid(0)",
    "socket.socket()",
    "socket.socket(socket.AF_UNIX)",
    "os.pipe()",
    "os.dup(0)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))",
    "time.sleep(1)",
)


@on_linux
def test_calls_of_the_system_are_refused(escaped: TemplateProcess) -> None:
    said = {code: ran(escaped, code) for code in REFUSED}
    refused = re.compile("Error.* not (permitted|allowed)")
    assert not {code: text for code, text in said.items() if not refused.search(text)}


@on_linux
@pytest.mark.parametrize("wall", ["namespaces", "Landlock", "limits"])
def test_each_wall_holds_without_the_others(
    wall: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seccomp hides the others: here each stands alone."""
    kept = {"namespaces": "_leave_namespaces", "Landlock": "_forbid_files", "limits": "_limit"}
    names = {*kept.values(), "_forbid_calls"} - {kept[wall]}
    without = "from mrs.text import walls\ndef gone(*_): raise OSError\n" + "".join(
        f"walls.{name} = gone\n" for name in sorted(names)
    )
    monkeypatch.setattr(
        child_process,
        "_PROGRAM",
        ESCAPED.replace("from mrs.text import sandbox\n", without).replace(
            "def escaped", "from mrs.text import sandbox\ndef escaped"
        ),
    )
    process = TemplateProcess()
    try:
        if wall not in process.walls():
            pytest.skip(f"this system forbids {wall}")
        assert process.walls() == [wall]
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            connected = ran(process, f"socket.create_connection(('127.0.0.1', {port}), 2)")
        read = ran(process, f"open({str(Path(__file__))!r}).read(9)")
        written = ran(process, f"open({str(tmp_path / 'x')!r}, 'w').close()")
    finally:
        process.stop()
    assert "Error" in connected
    if wall != "namespaces":
        assert "Error" in read
        assert "Error" in written
        assert not (tmp_path / "x").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "reply",
    [
        "{'stage': 'render', 'message': [], 'line': 1}",
        "os.write(1, b'no JSON\\n') and {}",
        "os._exit(0)",
        *first(
            0,
            [
                "{}",
                "{'text': 5}",
                "{'stage': 'render'}",
                "os.write(1, b'[' * 10 ** 5 + b'\\n') and {}",
                "os.write(1, b'\\xff\\n') and {}",
                "os.write(1, b'[1]\\n') and {}",
            ],
        ),
    ],
)
def test_a_reply_of_another_form_is_a_crash(escaped: TemplateProcess, reply: str) -> None:
    with pytest.raises(Stopped, match="crashes its process"):
        escaped.ask(reply, None, 10**6)
    assert ran(escaped, "1 + 1") == "2"


@pytest.mark.full
def test_memory_may_be_taken_and_given_back(escaped: TemplateProcess) -> None:
    code = "[len(bytearray(size)) for size in (10 ** 8, 10 ** 5, 3 * 10 ** 8) * 2] and gc.collect()"
    assert ran(escaped, code).isdigit()
    assert ran(escaped, "len([[] for _ in range(10 ** 6)])") == str(10**6)


#: Filters and forms for which Jinja or Python import something when they are first used.
LATE = {
    "{{ 'a b' | wordwrap(1) }}": "a\nb",
    "{{ [1] | pprint }}": "[1]",
    "{{ '&lt;i&gt;' | striptags }}": "<i>",
    "{{ '\\N{BULLET}' }}": "•",
    "{{ strftime_now('%Y') | length }}": "4",
    "{{ '\\u00e9' | urlencode }}": "%C3%A9",
    "{{ [1, 1] | random }}": "1",
    "{{ 'http://a.com' | urlize }}": '<a href="http://a.com" rel="noopener">http://a.com</a>',
    "{{ 'x'.encode('utf-16') | length }}": "4",
    "{{ {'a': 1.5} | tojson(indent=1) }}": '{\n "a": 1.5\n}',
}


def test_what_jinja_imports_late_is_there() -> None:
    template_process.renderer.stop()
    made = {source: ChatTemplate(source, name="late") for source in LATE}
    assert {source: each.render([], special_tokens={}) for source, each in made.items()} == LATE


def test_a_template_returns_no_megabytes_for_a_few_words() -> None:
    source = "{% for i in range(4000) %}" + "x" * 1000 + "{% endfor %}"
    with pytest.raises(Unsupported, match="far more text than it was given"):
        ChatTemplate(source, name="long").render([], special_tokens={})


@contextmanager
def stopped(pid: int, seconds: float) -> Iterator[None]:
    """A process that gets no processor for a while, as on a very busy machine."""
    os.kill(pid, signal.SIGSTOP)
    waker = f"import os, signal, time; time.sleep({seconds}); os.kill({pid}, signal.SIGCONT)"
    with subprocess.Popen([sys.executable, "-c", waker]):
        yield


@pytest.mark.full
@on_linux
def test_a_busy_machine_refuses_no_good_template(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages | length }}", name="good")
    process = template_process.renderer._process
    assert process is not None
    monkeypatch.setattr(template_process, "MAX_SECONDS", 0.3)
    with stopped(process.pid, 1.5):
        assert template.render([], special_tokens={}) == "0"


@pytest.mark.full
@on_linux
def test_a_loop_ends_by_its_processor_time_beside_busy_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template_process, "MAX_SECONDS", 0.5)
    monkeypatch.setattr(template_process, "_PATIENCE", 200)  # however busy they are
    loop = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    template = ChatTemplate(loop, name="endless")
    process = template_process.renderer._process
    assert process is not None
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    used: list[float] = []
    kill = process.kill

    def measured_kill() -> None:
        used.append(time.clock_gettime(~process.pid << 3 | 2))
        kill()

    monkeypatch.setattr(process, "kill", measured_kill)
    before = time.clock_gettime(~process.pid << 3 | 2)
    try:
        with pytest.raises(Unsupported, match=r"longer than 0\.5 s"):
            template.render([], special_tokens={})
    finally:
        for each in spinning:
            each.kill()
            each.wait()
    assert 0.5 <= used[0] - before < 5  # whoever ends it has to wait for a processor, too


@on_linux
def test_a_process_that_waits_for_ever_ends_by_the_clock(
    escaped: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ran(escaped, "1") == "1"
    monkeypatch.setattr(template_process, "MAX_SECONDS", 0.1)
    started = time.monotonic()
    with pytest.raises(Stopped, match="longer than"):
        escaped.ask("sys.stdin.buffer.read()", None, 99)
    assert 0.9 < time.monotonic() - started < 30


@on_linux
def test_without_its_parent_a_template_ends_by_processor_time(escaped: TemplateProcess) -> None:
    """The system ends it, though Python never comes to look at signals."""
    with pytest.raises(Stopped, match="crashes its process"):
        escaped.ask("signal.setitimer(signal.ITIMER_PROF, 0.2) and 10 ** 10 ** 9", None, 99)


def test_the_doctor_says_which_walls_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(walls: list[str]) -> doctor.Check:
        monkeypatch.setattr(template_process.renderer, "walls", lambda: walls)
        return next(doctor._templates())

    assert check(list(WALLS)).state == "ok"
    fewer = check(["limits"])
    assert (fewer.state, bool(fewer.cure)) == ("note", True)
    assert "missing: namespaces (no network" in fewer.found
    assert "seccomp" not in fewer.found.partition("missing")[0]


#: Asks the system itself for walls: what it answers is what it has.
OFFERED = {
    "namespaces": "unshare(0x10000000 | 0x40000000 | 0x08000000) == 0",
    "Landlock": "syscall(444, None, 0, 1) > 0",
}


@on_linux
def test_walls_that_this_system_has_all_stand() -> None:
    offered = {"limits", "seccomp"}
    for wall, call in OFFERED.items():
        code = f"import ctypes, sys; sys.exit(not ctypes.CDLL(None).{call})"
        if subprocess.run([sys.executable, "-c", code], check=False).returncode == 0:
            offered.add(wall)
    assert offered <= set(template_process.renderer.walls())
