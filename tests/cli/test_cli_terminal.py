"""The chat in a real terminal, with a fake model."""

from __future__ import annotations

import re
import shlex
import signal
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from mrs_runs import FAKE_MRS, PROMPT

pexpect = pytest.importorskip("pexpect")

STATISTICS = r"first token 0\.05 s · prompt 10 tokens, 200/s · reply \d+ tokens"


def exit_code_of(child) -> int:
    child.expect(pexpect.EOF)
    child.wait()
    return child.exitstatus


@pytest.mark.full
def test_replies_are_rendered_and_counted(chat):
    child = chat()
    child.send("hello\r")
    child.expect_exact("\x1b[1mfake\x1b[0m model.")
    child.expect(STATISTICS)
    child.expect_exact(PROMPT)
    child.send("\x04")
    assert exit_code_of(child) == 0


@pytest.mark.full
def test_loading_shows_a_bar_for_each_device_and_then_the_summary(chat):
    child = chat(wait=None)
    child.expect(r"cpu .*1\.0/1\.0")
    child.expect_exact("fake: a book of answers on cpu, 1.00 MiB")


@pytest.mark.full
def test_ctrl_c_while_loading_ends_it(chat):
    child = chat("-m", "slow", wait="slow load begins")
    child.sendintr()
    child.expect_exact("mrs: interrupted")
    assert exit_code_of(child) == 130


def test_ctrl_c_stops_the_reply_and_keeps_the_chat(chat):
    child = chat()
    child.send("forever\r")
    child.expect("3 4 5")
    child.sendintr()
    child.expect_exact("stopped")
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect("You said: user=forever")
    child.expect("assistant=0 1 2 3 4 5")
    child.expect_exact(PROMPT)
    child.send("\\exit\r")
    assert exit_code_of(child) == 0


@pytest.mark.full
def test_ctrl_c_before_the_first_word_leaves_no_trace(chat):
    child = chat()
    child.send("slow\r")
    child.expect("\u28fe|\u2807|\u280b|\u2819")  # the waiting spinner turns
    child.sendintr()
    child.expect_exact("stopped")
    assert "\x1b[1A" in child.before  # the spinner's line is given back
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect_exact("You said: none")


@pytest.mark.full
def test_ctrl_c_at_the_prompt_takes_the_line_away_then_leaves(chat):
    child = chat()
    child.send("half a thought")
    child.expect_exact("thought")
    child.sendintr()
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect_exact("You said: none")
    child.expect_exact(PROMPT)
    child.sendintr()
    child.expect_exact("press Ctrl-C again or Ctrl-D to leave")
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect_exact("user=history")
    child.expect_exact(PROMPT)
    child.sendintr()
    child.expect_exact("press Ctrl-C again")  # the prompt alone may be the old one, drawn anew
    child.expect_exact(PROMPT)
    child.sendintr()
    assert exit_code_of(child) == 0


@pytest.mark.full
def test_what_is_typed_while_a_model_loads_is_sent(chat):
    child = chat("-m", "waits", wait="slow load begins")
    child.send("hello\rsnow\rhalf")
    child.expect_exact("fake: a book of answers")
    assert "hello" not in child.before
    child.expect_exact("\x1b[1mfake\x1b[0m model.")
    child.expect_exact("\u2603 snow")
    child.expect_exact(PROMPT)
    child.expect_exact("half")
    child.send(" a line\r")
    child.expect("You said: half a line")


@pytest.mark.full
def test_what_is_typed_before_the_program_reads_keys_is_sent(chat):
    child = chat("-m", "waits", wait=None)
    child.send("hello\rsnow\r")  # while Python starts
    child.expect_exact("\x1b[1mfake\x1b[0m model.")
    child.expect_exact("\u2603 snow")


@pytest.mark.full
def test_a_terminal_has_its_echo_back_after_a_load_that_ends_in_an_error(chat):
    import termios

    child = chat("-m", "missing", wait="no such model")
    assert exit_code_of(child) == 3
    assert termios.tcgetattr(child.child_fd)[3] & termios.ECHO


@pytest.mark.full
def test_three_quotes_let_enter_begin_a_new_line(chat):
    child = chat()
    child.send('"""one\rtwo"""\r')
    child.expect(STATISTICS)
    assert "You said: one\r\n" in re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", child.before)
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect("user=one\r\n")


@pytest.mark.full
def test_sigterm_leaves_and_restores_the_terminal(chat):
    import termios

    child = chat()
    child.kill(signal.SIGTERM)
    assert exit_code_of(child) == 130
    child = chat()
    child.send("forever\r")
    child.expect("3 4 5")
    child.kill(signal.SIGTERM)
    assert exit_code_of(child) == 130
    assert termios.tcgetattr(child.child_fd)[3] & termios.ECHO
    assert "\x1b[?25h" in child.before


@pytest.mark.full
@pytest.mark.parametrize("new_line", ["\x1b\r", "\n"])
def test_messages_of_several_lines(chat, new_line):
    child = chat()
    child.send(f"one{new_line}two\r")
    child.expect("You said: one\r\n(\x1b\\[[0-9;?]*[a-zA-Z])*\r?\n?.*two")


@pytest.mark.full
def test_a_paste_of_many_lines_is_one_message(chat):
    child = chat()
    child.send("\x1b[200~first\nsecond\nthird\x1b[201~")
    child.send("\r")
    child.expect(STATISTICS)
    child.expect_exact(PROMPT)
    child.send("history\r")
    child.expect("user=first\r\n")
    assert "assistant" not in child.before.split("You said")[-1]


def test_ctrl_r_finds_an_earlier_message_and_enter_takes_it(chat):
    child = chat()
    child.send("history\r")
    child.expect_exact("none")
    child.expect_exact(PROMPT)
    child.send("\x12hist")
    child.expect_exact("hist")
    child.send("\r")  # takes it
    child.send("\r")  # sends it
    child.expect("You said: user=history")


@pytest.mark.full
def test_a_first_prompt_is_shown_and_the_chat_stays(chat):
    child = chat("-P", "hello", wait=None)
    child.expect("hello")
    child.expect("model\\.")
    child.expect_exact(PROMPT)
    child.send("/exit\r")
    assert exit_code_of(child) == 0


@pytest.mark.full
def test_history_is_kept_for_the_owner_alone(chat, process_env):
    child = chat()
    child.send("remember me\r")
    child.expect(STATISTICS)
    child.send("\x04")
    assert exit_code_of(child) == 0
    (history,) = Path(process_env["XDG_STATE_HOME"]).rglob("history")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "remember me" in history.read_text(encoding="utf-8")
    child = chat()
    child.send("\x1b[A\r")
    child.expect("You said: remember me")


@pytest.mark.full
def test_errors_keep_the_chat(chat):
    child = chat()
    child.send("broken\r")
    child.expect_exact("a tensor is truncated (model.safetensors)")
    child.expect_exact(PROMPT)
    child.send("/tok\r")
    child.expect_exact("unknown command \\tok: did you mean \\topk?")
    child.expect_exact(PROMPT)


@pytest.mark.full
def test_a_reply_cannot_steer_the_terminal(chat):
    child = chat()
    child.send("evil\r")
    child.expect(r"before\[2J\]0;owned31mafterend")


@pytest.mark.full
def test_no_colour(chat):
    child = chat(NO_COLOR="1")
    child.send("hello\r")
    child.expect(STATISTICS)
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", child.before)


@pytest.mark.full
def test_a_dumb_terminal_gets_plain_lines(chat):
    child = chat(TERM="dumb", wait="> ")
    child.sendline("hello")
    child.expect_exact("Hello! I am a **fake** model.")
    child.expect_exact("> ")
    assert "\x1b" not in child.before
    child.sendintr()
    child.expect_exact("press Ctrl-C again")
    child.expect_exact("> ")
    child.sendintr()
    assert exit_code_of(child) == 0


@pytest.mark.full
def test_keys_pressed_during_a_reply_wait_for_the_prompt(chat):
    child = chat(FAKE_DELAY_S="0.2")
    child.send("hello\r")
    child.expect_exact("Hello!")
    child.send("snow\r")
    child.expect(STATISTICS)
    assert "snow" not in child.before
    child.expect_exact("\u2603")


@pytest.mark.full
def test_notes_break_between_words_and_are_set_in(chat):
    child = chat(COLUMNS="40")
    child.send("\\help\r")
    child.expect("change the last *(\x1b\\[[0-9;]*m)*\r\n(\x1b\\[[0-9;]*m)*    message and ask")


@pytest.mark.parametrize("when", ["before_render", "after_render"])
def test_sigterm_ends_the_editor_even_where_exceptions_are_lost(when):
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    from mrs_cli.chat.screens.terminal_screen import _prompt
    from mrs_cli.exit import exit_on_sigterm

    def terminate(_: object) -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)

    with create_pipe_input() as keys, exit_on_sigterm():
        editor = PromptSession(input=keys, output=DummyOutput())
        handlers = getattr(editor.app, when)
        handlers += terminate
        keys.close()  # an editor that does not notice the signal ends here
        with pytest.raises(SystemExit):
            _prompt(editor)


@pytest.fixture
def chat_in_a_shell(process_env):
    """A chat that a shell has started, at its first prompt; replies take a while."""
    shell = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        env={**process_env, "PS1": "SHELL> ", "FAKE_DELAY_S": "0.2"},
        encoding="utf-8",
        dimensions=(24, 80),
        timeout=120,
    )
    shell.sendline(shlex.join([*FAKE_MRS, "-i", "plain", "-m", "demo"]))
    shell.expect_exact(PROMPT)
    yield shell
    shell.close(force=True)


@pytest.mark.full
def test_keys_wait_for_the_prompt_after_ctrl_z_in_a_reply_as_before_it(chat_in_a_shell):
    shell = chat_in_a_shell
    shell.send("hello\r")
    shell.expect_exact("Hello!")
    shell.send("\x1a")
    shell.expect_exact("Stopped")
    shell.sendline("fg")
    shell.expect_exact("model")
    shell.send("snow\r")
    shell.expect_exact(PROMPT)
    assert "snow" not in shell.before
    shell.expect_exact("\u2603")


@pytest.mark.full
def test_ctrl_z_suspends_at_the_prompt_and_keeps_what_was_typed(chat_in_a_shell):
    shell = chat_in_a_shell
    shell.send("hel\x1a")
    shell.expect_exact("Stopped")
    shell.sendline("fg")
    shell.send("lo\r")
    shell.expect_exact("Hello! I am a")
    shell.expect_exact(PROMPT)
    shell.send("exit\r")
    shell.expect_exact("SHELL>")


@pytest.mark.parametrize(("columns", "rows"), [(40, 1), (20, 1), (12, 2), (6, 5)])
def test_a_narrower_terminal_keeps_no_second_line(columns, rows):
    """The editor erases the rows into which the terminal has wrapped what it drew for 20."""
    import asyncio
    import io

    from prompt_toolkit import PromptSession
    from prompt_toolkit.data_structures import Size
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output.vt100 import Vt100_Output

    from mrs_cli.chat.screens.resizing import follow_resizes

    size, written = Size(24, 20), io.StringIO()
    output = Vt100_Output(written, lambda: size, term="xterm")

    async def resize() -> str:
        nonlocal size
        with create_pipe_input() as keys:
            editor = PromptSession("> ", input=keys, output=output, multiline=True)
            follow_resizes(editor.app)
            asked = asyncio.ensure_future(editor.prompt_async())
            keys.send_text("sixteen letters, and five")
            while "five" not in written.getvalue():
                await asyncio.sleep(0.01)
            written.truncate(0)
            written.seek(0)
            size = Size(24, columns)
            editor.app._on_resize()
            shown = written.getvalue()
            keys.send_text("\x1b\r")
            await asked
            return shown

    shown = asyncio.run(resize())
    erased = shown[: shown.index("\x1b[J")]
    up = re.findall(r"\x1b\[(\d*)A", erased)
    assert sum(int(count or 1) for count in up) == rows
