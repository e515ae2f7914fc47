"""Bad templates end soon, in one line that names the place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrs.errors import MrsError, Unsupported, UsageError
from mrs.text import template_process
from mrs.text.template import ChatTemplate
from support.suites import suite_of


def render(source: str, content: str = "Hello") -> str:
    template = ChatTemplate(source, name="chat_template.jinja")
    return template.render([{"role": "user", "content": content}], special_tokens={})


GREEDY = {
    "range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "loops in loops": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "loops over lists": "{% set r = range(99999)|list %}{% for a in r %}{% for b in r %}"
    "{% endfor %}{% endfor %}",
    "text in a macro": "{% macro m() %}{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}"
    "{% endmacro %}{{ m() | length }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a branching recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "repeat": "{{ 'x' * 10 ** 10 }}",
    "repeat a list": "{{ ([0] * 10 ** 10) | length }}",
    "repeat by content": "{{ (messages[0].content * 10 ** 9 * 10) | length }}",
    "power": "{{ 10 ** 10000000000 }}",
    "squares": "{% set n = namespace(x=10) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}"
    "{% endfor %}",
    "doubling by +": "{% set n = namespace(x='x') %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(x='x') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by join": "{% set n = namespace(x='x') %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] | join %}{% endfor %}",
    "doubling by format": "{% set n = namespace(x='x') %}{% for i in range(60) %}"
    "{% set n.x = '{}{}'.format(n.x, n.x) %}{% endfor %}",
    "doubling by %": "{% set n = namespace(x='x') %}{% for i in range(60) %}"
    "{% set n.x = '%s%s' % (n.x, n.x) %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set n.x = n.x.replace('x', n.x) %}{% endfor %}",
    "doubling by a replace filter": "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
    "{% set n.x = n.x | replace('x', n.x) %}{% endfor %}",
    "doubling by a block": "{% set n = namespace(x='x') %}{% for i in range(60) %}"
    "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
    "doubling lists": "{% set n = namespace(x=[0]) %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "nesting lists": "{% set n = namespace(x=[0]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "nesting lists as JSON": "{% set n = namespace(x=[0]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson | length }}",
    "padding": "{{ 'x'.ljust(10 ** 10) | length }}",
    "a wide filter": "{{ 'x' | center(10 ** 10) | length }}",
    "a deep indent": "{{ 'x\n' | indent(10 ** 10) | length }}",
    "batches": "{{ [0] | batch(10 ** 10, 0) | list | length }}",
    "a wide format": "{{ '%10000000000d' % 1 }}",
    "a wide str.format": "{{ '{:>10000000000}'.format(1) }}",
    "a wide format filter": "{{ '%*d' | format(10 ** 10, 1) }}",
    "tabs": "{{ '\t'.expandtabs(10 ** 10) | length }}",
    "wrapping with a long text": "{{ ('a ' * 10 ** 5) | wordwrap(1, wrapstring='x' * 10 ** 4) }}",
    "a sum of lists": "{{ ([[1] * 99] * 9999) | sum(start=[]) | length }}",
    "much text": "{% for i in range(9999) %}" + "x" * 1000 + "{% endfor %}",
}
COMPARING = GREEDY["comparing"] = (
    "{% set ns = namespace(x=[], y=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
)

#: What the core suite tries: time, depth, and memory by a number and by a text.
KINDS = (
    "range",
    "a branching recursion",
    "repeat by content",
    "doubling by format",
    "much text",
)


@pytest.fixture(name="short_limit")
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    render("the process is there")
    monkeypatch.setattr(template_process, "MAX_SECONDS", 0.3)


@pytest.mark.few("doubling by format")
@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("name", [pytest.param(n, marks=suite_of(n, KINDS)) for n in GREEDY])
def test_greedy_templates_are_stopped(name: str) -> None:
    with pytest.raises(Unsupported, match=r"chat_template\.jinja"):
        render(GREEDY[name])


@pytest.mark.usefixtures("short_limit")
def test_what_stops_a_template_is_said_and_the_next_one_is_rendered() -> None:
    with pytest.raises(Unsupported, match=r"^the chat template fails: .* longer than 0\.3 s \("):
        render(COMPARING)
    assert render("{{ messages[0].content }}") == "Hello"
    with pytest.raises(Unsupported, match=r"takes more memory than 512 MiB \("):
        render("{{ 'x' * 10 ** 9 }}")
    assert render("{{ messages[0].content }}") == "Hello"
    with pytest.raises(Unsupported, match="far more text than it was given"):
        render(GREEDY["much text"])


def test_ctrl_c_ends_the_waiting_for_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    render("the process is there")
    monkeypatch.setattr(template_process, "MAX_SECONDS", 3600)  # nothing else ends it
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        render(COMPARING)
    assert render("{{ messages[0].content }}") == "Hello"


def test_a_process_that_was_killed_is_started_anew() -> None:
    render("the process is there")
    process = template_process.renderer._process
    assert process is not None
    process.kill()
    process.wait()
    assert render("{{ messages[0].content }}") == "Hello"


def test_usual_conversations_and_long_ones_do_not_wait_for_each_other() -> None:
    template = ChatTemplate("{{ messages[0].content }}", name="x")

    def length(characters: int) -> int:
        message = {"role": "user", "content": "a" * characters}
        return len(template.render([message], special_tokens={}))

    with ThreadPoolExecutor() as threads:
        for busy, free in ((5, 2**17), (2**17, 5)):
            with template_process.renderer_for(busy)._lock:  # as while one is rendered
                assert threads.submit(length, free).result(60) == free


def test_no_thread_starts_for_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that starts when memory is short may never say that it has."""
    render("the process is there")
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread starts"))
    assert render("{{ messages[0].content }}") == "Hello"


def test_half_a_character_of_a_template_is_said() -> None:
    with pytest.raises(Unsupported, match=r"lone surrogate \(chat_template\.jinja\)"):
        render("{{ '\\ud800' }}")


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="sessions are of POSIX")
def test_the_process_is_alone_and_ends_with_its_parent(tmp_path: Path) -> None:
    """It has a session of its own, three files, nothing of the working folder, and no orphan."""
    (tmp_path / "jinja2.py").write_text("raise SystemExit")
    (tmp_path / "json.py").write_text("raise SystemExit")
    script = (
        "import os, time\nfrom mrs.text.template import ChatTemplate\n"
        "from mrs.text.template_process import renderer\n"
        "held = os.open('.', 0); os.set_inheritable(held, True)\n"
        "ChatTemplate('x', name='x')\nprint(renderer._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    (tmp_path / "run.py").write_text(f"import sys; sys.path.pop(0)\n{script}")
    command = [sys.executable, str(tmp_path / "run.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert os.getsid(child) == child
        if Path("/proc/self/fd").exists():
            assert {each.name for each in Path(f"/proc/{child}/fd").iterdir()} == {*"012"}
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 120
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(child)


def _is_alive(process_id: int) -> bool:
    status = Path(f"/proc/{process_id}/stat")
    if Path("/proc/self/stat").exists():
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_long_conversations_are_not_greedy() -> None:
    """Half a million characters in 400 messages, in a template that handles each several times."""
    source = (
        "{% for message in messages %}{% if message.role not in ['user'] %}"
        "{{ raise_exception('') }}{% endif %}{% set content = message['content'] | trim %}"
        "{{ '<|im_start|>' + message.role + '\n' + content.strip() + '<|im_end|>' + '\n' }}"
        "{% if loop.index0 == messages | length - 1 %}{{ content | tojson }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, name="test")
    messages = [{"role": "user", "content": "some text " * 125}] * 400
    assert len(template.render(messages, special_tokens={})) > 400 * 1249


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.__class__.__name__ }}",
        "{% include 'etc' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(Unsupported):
        render(source)


def test_a_syntax_error_names_the_line() -> None:
    with pytest.raises(Unsupported, match=r"line 3\)") as caught:
        render("{{ 'a' }}\n\n{% if %}\n{% endif %}")
    assert str(caught.value).startswith("the chat template cannot be compiled: ")


@pytest.mark.parametrize(
    "source", ["\n\n{{ nothing.here.at_all }}", "\n\n{{ 1 + 'a' }}", "\n\n{{ [1][5].x }}"]
)
def test_an_error_while_rendering_names_the_line(source: str) -> None:
    with pytest.raises(Unsupported, match=r"the chat template fails: .*line 3\)"):
        render(source)


def test_a_refused_conversation_is_the_persons_to_mend() -> None:
    with pytest.raises(UsageError, match=r"refuses .*: Roles must alternate! \(.*, line 2\)"):
        render("\n{{ raise_exception('Roles must alternate!') }}")


def test_errors_are_one_line() -> None:
    with pytest.raises(MrsError) as caught:
        render("{% for %}\n" * 5)
    assert "\n" not in str(caught.value)
    with pytest.raises(MrsError) as caught:
        render("{{ raise_exception('one\ntwo') }}")
    assert "\n" not in str(caught.value)
