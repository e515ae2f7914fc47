"""Presets: flags under a name, which `@NAME` stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrs_cli.app import command_tree
from mrs_cli.parsing.presets import with_presets


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mrs" / "presets"


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def expanded(*words: str) -> list[str]:
    return with_presets(words, command_tree())[0]


def test_saved_flags_are_those_of_the_run(run_mrs, folder):
    saved = run_mrs(
        *("save", "code", "-m", "demo", "--max-tokens", "5", "--temperature", "0"),
        *("--stop", 'a "quoted"\nline', "--stop", "b", "--system", "Räts\x7fel", "--cpu", "-q"),
    )
    assert saved.code == 0
    assert f"saved @code in {folder / 'code.toml'}" in saved.out
    ran = run_mrs("run", "@code", "hello")
    assert ran.code == 0
    (model,) = ran.models
    assert model.request.source.model_id == "demo"
    assert model.request.cpu
    sampling = model.asked[0][1]
    assert (sampling.max_tokens, sampling.temperature) == (5, 0)
    assert sampling.stop == ('a "quoted"\nline', "b")
    assert model.asked[0][0][0] == {"role": "system", "content": "Räts\x7fel"}
    assert "replaced @code" in run_mrs("save", "code", "-m", "demo").out


def test_flags_after_the_preset_win(run_mrs, folder):
    write(folder, "a", 'model-id = "demo"\nmax-tokens = 5\n')
    sampling = run_mrs("run", "@a", "hello", "--max-tokens", "7").models[0].asked[0][1]
    assert sampling.max_tokens == 7
    assert run_mrs("@a", "hello", "-m", "demo-vision").models[0].request.vision


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("@a hi", "--model-id=demo --cpu hi"),
        ("run @a list", "run --model-id=demo --cpu list"),
        ("@a list", "--model-id=demo --cpu list"),
        ("-i -m @a", "-i --model-id=demo --cpu"),
        ("--model-id=@a -P hi", "--model-id=demo --cpu -P hi"),
        ("-P @a -m demo", "-P @a -m demo"),
        ("run demo @a", "run demo @a"),
        ("serve -p 80 @a", "serve -p 80 --model-id=demo --cpu"),
        ("launch claude -m @a -- @a", "launch claude --model-id=demo --cpu -- @a"),
        ("chat -- @a", "chat -- @a"),
        ("rm @a", "rm @a"),
        ("rm -m @a", "rm -m @a"),
        ("cache delete -m @a", "cache delete -m @a"),
        ("embed -m demo @a", "embed -m demo @a"),
        ("run -m demo @a", "run -m demo @a"),
        ("gguf -m demo @a", "gguf -m demo @a"),
        ("bench -p 8 -m @a", "bench -p 8 --model-id=demo --cpu"),
    ],
)
def test_where_a_word_is_a_preset(folder, given, found):
    write(folder, "a", 'model-id = "demo"\ncpu = true\nverbose = 0\n')
    assert expanded(*given.split()) == found.split()


def test_flags_of_other_commands_are_left_out_and_named(run_mrs, folder):
    write(folder, "a", 'model-id = "demo"\ntemperature = 0.5\nsystem = "Hi"\n')
    words, notes = with_presets(["plan", "--dry-run", "@a"], command_tree())
    assert words == ["plan", "--dry-run", "--model-id=demo"]
    assert notes == ["@a: mrs plan takes no --temperature, --system"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cpu = true\ntemprature = 1\n", "line 2: there is no flag temprature: did you mean temp"),
        ("# none\n\n[more]\na = 1\n", "line 3: there is no flag more"),
        ("isq = {a = 1}\n", "line 1: isq is no value of a flag"),
        ("isq = \n", "is not TOML (Invalid value (at line 1"),
        ("isq = '\xe9'\n".encode("latin-1"), "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(run_mrs, folder, text, error):
    path = write(folder, "a", "")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = run_mrs("run", "@a", "hi")
    assert ran.code == 2
    assert str(path) in ran.err
    assert error in ran.err


def test_names_that_are_near_are_offered(run_mrs, folder):
    write(folder, "code", 'model-id = "demo"\n')
    ran = run_mrs("run", "@coed", "hi")
    assert ran.code == 3
    assert "there is no preset coed: did you mean @code?" in ran.err
    assert "did you mean the preset @code?" in run_mrs("coed").err
    assert run_mrs("save", "../a", "-m", "demo").code == 2
    assert "leave that word out: mrs run @code" in run_mrs("gguf", "-m", "@code").err


def test_secrets_are_not_saved(run_mrs, folder):
    ran = run_mrs("save", "a", "-m", "demo", "--token-source", "literal:abc")
    assert ran.code == 2
    assert "abc" not in ran.err
    assert not folder.exists()
    assert run_mrs("save", "a", "-m", "demo", "--token-source", "env:TOKEN").code == 0
    assert run_mrs("save", "b").code == 2


def test_presets_are_listed_shown_and_removed(run_mrs, folder):
    path = write(folder, "code", 'model-id = "demo"\n')
    assert "presets: @code" in run_mrs("list").out
    assert json.loads(run_mrs("list", "--json").out)["presets"] == ["code"]
    assert run_mrs("show", "@code").out == 'model-id = "demo"\n'
    shown = json.loads(run_mrs("show", "@code", "--json").out)
    assert shown == {"name": "code", "path": str(path), "flags": {"model-id": "demo"}}
    assert run_mrs("rm", "@code").code == 0
    assert not path.exists()
    assert run_mrs("rm", "@code").code == 3
    assert "presets" not in run_mrs("list").out
