"""A byte order mark is no part of a text, and UTF-16 is refused by name."""

from __future__ import annotations

import codecs
import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mrs_runs import Ran

from mrs.errors import NotReadable
from mrs.process.encodings import first_text, text_of
from mrs.source.folder import LocalFolder, read_json
from mrs.topology import read_topology
from mrs_cli.commands.given_texts import given_texts
from mrs_cli.commands.serve import _api_keys
from mrs_cli.commands.stdin_prompts import PipedLines
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.embed_flags import TextFlags
from mrs_cli.parsing.grammar_flags import read_grammar

MARK = codecs.BOM_UTF8
OTHERS = [("utf-16", "UTF-16"), ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32")]


def marked(text: str, encoding: str) -> bytes:
    """The text in an encoding, with its signature."""
    if encoding == "utf-16-be":
        return codecs.BOM_UTF16_BE + text.encode(encoding)
    return text.encode(encoding)


def piped(data: bytes) -> PipedLines:
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    return PipedLines(os.fdopen(read_end, encoding="utf-8", errors="replace"))


def test_a_mark_before_piped_prompts_is_dropped() -> None:
    lines = piped(MARK + "one\n\ufeff two\n".encode())
    assert list(iter(lambda: lines.read(wait=True), None)) == ["one", "\ufeff two"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_piped_utf_16_is_refused_by_name(encoding: str) -> None:
    with pytest.raises(NotReadable, match="this is UTF-16"):
        piped(marked("hello\n", encoding)).read(wait=True)


@pytest.mark.parametrize("flags", [(), ("-i",)])
def test_a_reply_is_to_the_prompt_without_the_mark(
    run_mrs: Callable[..., Ran], flags: tuple[str, ...]
) -> None:
    plain = run_mrs(*flags, "plain", "-m", "x", stdin="hello\n")
    found = run_mrs(*flags, "plain", "-m", "x", stdin="\ufeffhello\n")
    assert (found.code, found.out, found.err) == (plain.code, plain.out, plain.err)
    assert plain.code == 0


def texts(file: Path | None, stdin: str = "") -> list[str]:
    nowhere = io.StringIO()
    environment = Environment(io.StringIO(stdin), nowhere, nowhere)
    return list(given_texts(environment, None if file is None else str(file), TextFlags()))


def test_texts_of_files_and_pipes_have_no_mark(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(MARK + b"one\r\ntwo\n")
    assert texts(file) == texts(None, "\ufeffone\ntwo\n") == ["one", "two"]


@pytest.mark.parametrize(("encoding", "name"), OTHERS)
def test_files_in_other_encodings_are_refused_by_name(
    encoding: str, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(marked('{"a": 1}', encoding))
    with pytest.raises(NotReadable, match=f"this is {name}"):
        texts(file)
    with pytest.raises(NotReadable, match=f"config.json is {name}"):
        read_json(LocalFolder(tmp_path), "config.json")


def test_json_topologies_grammars_and_keys_have_no_mark(tmp_path: Path) -> None:
    json_file, topology = tmp_path / "config.json", tmp_path / "topology.yml"
    json_file.write_bytes(MARK + b'{"type": "object"}')
    assert read_json(LocalFolder(tmp_path), "config.json") == {"type": "object"}
    assert read_grammar(str(json_file), None).text == '{"type": "object"}'
    topology.write_bytes(MARK + b"0-2: {isq: q4k}\n")
    assert [rule.selector for rule in read_topology(str(topology)).rules] == ["0-2"]
    keys = tmp_path / "keys"
    keys.write_bytes(MARK + b"secret\n")
    nowhere = io.StringIO()
    assert _api_keys(Environment(nowhere, nowhere, nowhere), str(keys)) == ("secret",)


def test_only_the_first_text_of_a_stream_is_looked_at() -> None:
    assert first_text("\ufffd\ufffd ok", "here") == "\ufffd\ufffd ok"
    assert text_of(MARK + b"a\xff", "here") == "a\ufffd"


@pytest.mark.full
def test_a_process_drops_the_mark(process_env: dict[str, str]) -> None:
    from mrs_runs import FAKE_MRS

    found, plain = (
        subprocess.run(
            [*FAKE_MRS, "plain", "-m", "demo", "-q"],
            check=False,
            input=data,
            env=process_env,
            capture_output=True,
        )
        for data in (MARK + b"hello\n", b"hello\n")
    )
    assert (found.returncode, found.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == 0
