"""Adapters from a Python program, from a server's client and on the command line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mrs import ChatCompletionRequest, CompletionRequest, LoraAdapter, Runner, Which
from mrs.errors import Unsupported, UsageError
from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.lora_files import Adapter
from support.model_files import DEMO

PROMPT = "Who are you?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = load_file(DEMO / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    return Adapter(weights, ("q_proj", "v_proj", "up_proj")).write(tmp_path_factory.mktemp("a"))


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Runner]:
    which = Which.Lora("demo", [LoraAdapter("odd", str(folder))], dtype="f32")
    with Runner(which=which, cpu=True) as made:
        yield made


def ask(runner: Runner, **fields: str) -> str | None:
    messages = [{"role": "user", "content": PROMPT}]
    request = ChatCompletionRequest(messages=messages, max_tokens=12, **fields)
    return runner.send_chat_completion_request(request).choices[0].message.content


def command(*words: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(["--quiet", "--cpu", *words], Environment(io.StringIO(""), out, err))
    return code, out.getvalue().strip() or err.getvalue()


def test_a_request_chooses_an_adapter(runner: Runner) -> None:
    plain, odd = ask(runner), ask(runner, adapter="odd")
    assert plain != odd
    assert (ask(runner), ask(runner, adapter="odd")) == (plain, odd)


def test_it_is_the_same_in_the_weights(runner: Runner, folder: Path) -> None:
    words = ("-P", PROMPT, "--temperature", "0", "--max-tokens", "12")
    code, merged = command(*words, "lora", "-m", "demo", "-a", str(folder), "-d", "f32")
    assert (code, merged) == (0, (ask(runner, adapter="odd") or "").strip())


def test_a_flag_chooses_an_adapter(runner: Runner, folder: Path) -> None:
    words = ("-P", PROMPT, "--temperature", "0", "--max-tokens", "12", "-m", "demo", "-d", "f32")
    code, chosen = command(*words, "--lora", f"odd={folder}", "--adapter", "odd")
    assert (code, chosen) == (0, (ask(runner, adapter="odd") or "").strip())


def test_an_adapter_that_is_not_loaded(runner: Runner) -> None:
    with pytest.raises(UsageError, match="no adapter 'even': choose one of odd"):
        ask(runner, adapter="even")
    request = CompletionRequest(prompt="a", adapter="even", max_tokens=1)
    with pytest.raises(UsageError, match="no adapter 'even'"):
        runner.send_completion_request(request)


def test_what_is_no_adapter() -> None:
    with pytest.raises(UsageError, match="a list of LoraAdapter"):
        Which.Lora("demo", ["odd"])  # type: ignore[list-item]
    with pytest.raises(Unsupported, match="topology"):
        Which.Lora("demo", topology="x")  # type: ignore[arg-type]
