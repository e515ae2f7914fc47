"""The windows of a text are those of llama-perplexity, or as far apart as one asks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mrs.errors import NotReadable, UsageError
from mrs.run.evaluation.windows import OWN_TEXT, Windows, Work, read_windows

BOS = 7


def tokenizer(*, adds_bos: bool) -> Any:
    return SimpleNamespace(
        bos_id=BOS,
        encode_prompt=lambda text: [BOS] if adds_bos else [],
        encode=lambda text, allow_special: list(text.encode()),
    )


def test_windows_follow_each_other_and_the_second_half_is_scored() -> None:
    windows = Windows(range(100), [], Work(context_tokens=16))
    assert [windows[index][0] for index in range(len(windows))] == [0, 16, 32, 48, 64, 80]
    # Of 16 tokens llama-perplexity scores those after the 8th but one: logits of 8 to 14.
    assert Work(context_tokens=16).scored == 7
    assert Work(context_tokens=512).scored == 255


def test_each_window_begins_with_bos_if_the_tokenizer_adds_it(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("abcdefghijklmnop")
    work = Work(str(path), context_tokens=4)
    plain = read_windows(work, tokenizer(adds_bos=False), 300)
    assert plain[1] == list(b"efgh")
    with_bos = read_windows(work, tokenizer(adds_bos=True), 300)
    assert with_bos[0] == [BOS, *b"abc"]
    assert with_bos[1] == [BOS, *b"efg"]  # in the place of the d


def test_windows_a_stride_apart_score_as_many_tokens() -> None:
    work = Work(context_tokens=16, stride=4)
    windows = Windows(range(40), [], work)
    assert len(windows) == 7
    scored = [windows[index][-work.scored :] for index in range(len(windows))]
    assert [each for part in scored for each in part] == list(range(12, 40))


def test_no_more_windows_than_asked_for() -> None:
    assert len(Windows(range(100), [], Work(context_tokens=10, most_windows=3))) == 3


def test_other_tokens_and_other_scoring_have_another_digest() -> None:
    digests = {
        Windows(ids, [], work).digest
        for ids in (range(40), range(1, 41))
        for work in (Work(context_tokens=16), Work(context_tokens=16, stride=3))
    }
    assert len(digests) == 4


def test_token_files_are_arrays_of_known_ids(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    work = Work(tokens=str(path), context_tokens=4)
    path.write_text(json.dumps([1, 2, 3, 4, 5]))
    assert list(read_windows(work, tokenizer(adds_bos=False), 6)) == [[1, 2, 3, 4]]
    for wrong in ("[1, 2.5]", "{}", "nothing", "[1, 2, 3, 6]", "[true]", "[" * 100_000):
        path.write_text(wrong)
        with pytest.raises(NotReadable):
            read_windows(work, tokenizer(adds_bos=False), 6)


def test_what_cannot_be_computed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_text("abc")
    with pytest.raises(UsageError, match="3 tokens are fewer than a window of 512"):
        read_windows(Work(str(path)), tokenizer(adds_bos=False), 300)
    with pytest.raises(UsageError, match="at most 15"):
        Work(context_tokens=16, stride=16)
    with pytest.raises(UsageError, match="exclude each other"):
        Work(text="a", tokens="b")


def test_the_text_that_comes_along_is_long_enough_and_stays_the_same() -> None:
    import hashlib

    content = OWN_TEXT.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert digest == "5c9218bed3256a34afa536a17a4439cc978761de5ea17c5f9b465241cea8bd03", (
        "figures of versions would not compare"
    )
