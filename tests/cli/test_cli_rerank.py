"""`mrs rerank`: documents of arguments, a file or a pipe, best first, as JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from mrs_runs import Terminal

from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.sentence_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    write_model(folder, "bert", "AutoModelForSequenceClassification", num_labels=1)
    return str(folder)


def rerank(*arguments: str, stdin: str | None = "") -> tuple[int, list[dict], str]:
    out, err = io.StringIO(), io.StringIO()
    source = Terminal() if stdin is None else io.StringIO(stdin)
    code = main(["rerank", *arguments], Environment(source, out, err, {}))
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def test_arguments_files_and_pipes_rank_alike(model: str, tmp_path: Path) -> None:
    texts = ["a key", "the cache keeps values", "text"]
    code, lines, _ = rerank("-m", model, "--query", "the key?", *texts)
    assert code == 0
    assert sorted(line["index"] for line in lines) == [0, 1, 2]
    assert all(line["text"] == texts[line["index"]] for line in lines)
    scores = [line["score"] for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    given = "a key\n\nthe cache keeps values\ntext\n"
    (tmp_path / "texts.txt").write_text(given)
    file = ("--file", str(tmp_path / "texts.txt"))
    assert rerank("-m", model, "--query", "the key?", *file)[1] == lines
    best = rerank("-q", "-m", model, "--query", "the key?", "--top-n", "1", stdin=given)
    assert best == (0, lines[:1], "")


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["a"], "", 2, 'no question is given: add --query "TEXT"'),
        (["--query", "a", "b", "--file", "c"], "", 2, "both texts and --file"),
        (["--query", "a"], "", 2, "no text to rank"),
        (["--query", "a"], None, 2, "no text is given"),
        (["--query", "a", "keys " * 99], "", 2, "context holds 96"),
    ],
)
def test_what_is_wrong_is_named(
    model: str, arguments: list[str], stdin: str | None, code: int, words: str
) -> None:
    found, lines, error = rerank("-q", "-m", model, *arguments, stdin=stdin)
    assert (found, lines) == (code, [])
    assert words in error


def test_a_model_that_embeds_does_not_rank(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    code, _, error = rerank("-q", "-m", str(tmp_path), "--query", "a", "b")
    assert code == 5
    assert "does not rank texts" in error
