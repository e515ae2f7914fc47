"""`mrs classify`: the classes of arguments, a file or a pipe, as JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from mrs_runs import Terminal

from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.sentence_models import token_ids, write_model

LABELS = {0: "negative", 1: "neutral", 2: "Positive!"}
TEXTS = ["a key", "the cache keeps values", "text"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("distilbert")
    kind = "AutoModelForSequenceClassification"
    model = write_model(folder, "distilbert", kind, id2label=LABELS, hidden_dim=96)
    return str(folder), model


def classify(*arguments: str, stdin: str | None = "") -> tuple[int, list[dict], str]:
    out, err = io.StringIO(), io.StringIO()
    source = Terminal() if stdin is None else io.StringIO(stdin)
    code = main(["classify", *arguments], Environment(source, out, err, {}))
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def test_arguments_files_and_pipes_are_classified(
    written: tuple[str, torch.nn.Module], tmp_path: Path
) -> None:
    folder, model = written
    code, lines, _ = classify("-m", folder, "--dtype", "f32", *TEXTS)
    assert code == 0
    for index, (text, line) in enumerate(zip(TEXTS, lines, strict=True)):
        with torch.inference_mode():
            ids = torch.tensor([token_ids(Path(folder), text)[0]])
            shares = model(ids).logits[0].softmax(-1).tolist()
        expected = dict(zip(LABELS.values(), shares, strict=True))
        assert line["index"] == index
        assert line["probabilities"] == pytest.approx(expected, abs=1e-5)
        assert line["label"] == max(expected, key=expected.__getitem__)
    given = "a key\n\nthe cache keeps values\ntext\n"
    (tmp_path / "texts.txt").write_text(given)
    flags = ("-q", "-m", folder, "--dtype", "f32")
    assert classify(*flags, "--file", str(tmp_path / "texts.txt")) == (0, lines, "")
    assert classify(*flags, stdin=given) == (0, lines, "")
    pairs = classify(*flags, "--text-pair", "the key?", *TEXTS)[1]
    assert [line["index"] for line in pairs] == [0, 1, 2]
    assert [line["probabilities"] for line in pairs] != [line["probabilities"] for line in lines]


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["b", "--file", "c"], "", "both texts and --file"),
        ([], "", "no text to classify"),
        ([], None, "no text is given"),
        (["keys " * 99], "", "context holds 96"),
    ],
)
def test_what_is_wrong_is_named(
    written: tuple[str, torch.nn.Module], arguments: list[str], stdin: str | None, words: str
) -> None:
    code, lines, error = classify("-q", "-m", written[0], *arguments, stdin=stdin)
    assert (code, lines) == (2, [])
    assert words in error


def test_a_model_that_embeds_does_not_classify(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    code, _, error = classify("-q", "-m", str(tmp_path), "b")
    assert code == 5
    assert "does not classify texts" in error
