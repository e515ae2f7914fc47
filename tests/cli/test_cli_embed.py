"""`mrs embed`: JSON lines or a NumPy file, of arguments, a file or a pipe."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from mrs_runs import Terminal

from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.sentence_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    write_model(folder, "bert")
    return str(folder)


def embed(*arguments: str, stdin: str | None = "") -> tuple[int, list[dict], str]:
    out, err = io.StringIO(), io.StringIO()
    source = Terminal() if stdin is None else io.StringIO(stdin)
    code = main(["embed", *arguments], Environment(source, out, err, {}))
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def test_texts_files_and_pipes_say_the_same(model: str, tmp_path: Path) -> None:
    code, lines, _ = embed("-m", model, "a key", "text")
    assert code == 0
    assert [line["index"] for line in lines] == [0, 1]
    assert [line["tokens"] for line in lines] == [4, 3]
    assert np.linalg.norm(lines[0]["embedding"]) == pytest.approx(1, abs=1e-6)
    code, piped, err = embed("-q", "-m", model, stdin="a key\n\ntext\n")
    assert (code, err, [line["tokens"] for line in piped]) == (0, "", [4, 3])
    vectors = np.array([line["embedding"] for line in lines])
    # Texts that are computed together differ by rounding from those that are not.
    assert np.abs(vectors - [line["embedding"] for line in piped]).max() < 1e-6
    file = tmp_path / "texts.txt"
    file.write_text("a key\ntext\n")
    target = tmp_path / "found.npy"
    assert embed("-m", model, "--file", str(file), "--output", str(target))[:2] == (0, [])
    found = np.load(target)
    assert found.dtype == np.float32
    assert np.abs(found - vectors).max() < 1e-6


def test_the_model_may_be_the_first_word(model: str) -> None:
    named = embed("-m", model, "a/b", "two")
    assert named[0] == 0
    assert embed(model, "a/b", "two")[:2] == named[:2]
    assert embed(model, stdin="a/b\ntwo\n")[:2] == named[:2]
    assert embed("a/b", "two", "-m", model)[:2] == named[:2]


def test_a_file_has_the_same_lines_as_a_pipe(model: str, tmp_path: Path) -> None:
    text = "".join(f"a{character}key\n" for character in "\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    file = tmp_path / "texts.txt"
    file.write_text(f"{text}\r\n", encoding="utf-8")
    piped, read = embed("-m", model, stdin=text)[1], embed("-m", model, "--file", str(file))[1]
    assert len(piped) == len(read) == 8
    assert [line["tokens"] for line in piped] == [line["tokens"] for line in read]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["a", "--file", "b"], "", 2, "both texts and --file"),
        ([], "", 2, "no text to embed"),
        ([], None, 2, "no text is given"),
        (["--file", "/nowhere"], "", 3, "cannot read the texts"),
        (["a", "--dimensions", "5"], "", 5, "embeddings of 5 values"),
        (["a", "--prompt-name", "b"], "", 2, "no prompt 'b'"),
        (["keys " * 99], "", 2, "holds 96"),
    ],
)
def test_what_is_wrong_is_one_line(
    model: str, arguments: list[str], stdin: str | None, code: int, words: str
) -> None:
    found, lines, error = embed("-q", "-m", model, *arguments, stdin=stdin)
    assert (found, lines) == (code, [])
    assert words in error
    assert error.count("\n") == 1


def test_a_model_that_embeds_does_not_chat(model: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    code = main(["-q", "-P", "Hi", "-m", model], Environment(io.StringIO(), out, err, {}))
    assert code == 5
    assert "makes embeddings of texts, but no replies: use mrs embed" in err.getvalue()
    assert err.getvalue().count("\n") == 1


def test_a_plan_has_no_kv_cache(model: str) -> None:
    out = io.StringIO()
    environment = Environment(io.StringIO(), out, io.StringIO(), {})
    assert main(["plan", "--dry-run", "-m", model], environment) == 0
    assert "no KV cache" in out.getvalue()
    assert "speed: texts" in out.getvalue()
    assert "reply" not in out.getvalue()
