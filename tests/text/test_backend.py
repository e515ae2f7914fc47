"""Calls into the `tokenizers` library: they fail as errors of ours and stop no other thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from text_samples import gguf_metadata, published_pre_tokenizers, train_byte_level

from mrs.errors import NotReadable, UsageError
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.tokenizer import Tokenizer

BACKEND = train_byte_level(published_pre_tokenizers()["smollm"])
#: A text that regular expressions with nested repetitions need too many steps for.
LONG = "a" * 60 + "!"


def read(**sections: Any) -> Tokenizer:
    """The tokenizer with some sections of its tokenizer.json replaced."""
    settings = {**json.loads(BACKEND.to_str()), **sections}
    return read_hf_tokenizer({"tokenizer.json": json.dumps(settings)}.get)


def test_encoding_starts_no_thread(tmp_path: Path) -> None:
    """In a new process, because the library's threads stay."""
    (tmp_path / "tokenizer.json").write_text(read().backend.to_str())
    code = (
        "import pathlib, psutil, sys\n"
        "from mrs.text.backend import encode, parse_backend\n"
        "backend = parse_backend(pathlib.Path(sys.argv[1]).read_text())\n"
        "assert encode(backend, 'aa bb', add_special_tokens=False).ids\n"
        "print(psutil.Process().num_threads())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-c", code, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.full
def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    """A busy machine may let them wait once, but not each time."""
    tokenizer = read()
    assert any(_others_run_meanwhile(tokenizer) for _ in range(20))


def _others_run_meanwhile(tokenizer: Tokenizer) -> bool:
    ran: list[float] = []
    started, ended = threading.Event(), threading.Event()

    def run() -> None:
        while not ended.is_set():
            ran.append(time.monotonic())
            started.set()
            time.sleep(0.001)

    other = threading.Thread(target=run)
    other.start()
    started.wait()
    began = time.monotonic()
    ids = tokenizer.encode("the quick brown fox " * 50_000, allow_special=True)
    took = time.monotonic() - began
    ended.set()
    other.join()
    assert len(ids) > 100_000
    return any(0.1 * took < moment - began < 0.6 * took for moment in ran)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "sections",
    [
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "^(a+)+$"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"normalizer": {"type": "Replace", "pattern": {"Regex": r"^(\w+\s?)*$"}, "content": ""}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    ],
)
def test_a_tokenizer_that_fails_for_a_text_is_an_error(sections: dict[str, Any]) -> None:
    tokenizer = read(**sections)
    for encode in (tokenizer.encode_prompt, tokenizer.encode_rendered, tokenizer.encode_whole):
        with pytest.raises(NotReadable, match=r"^the tokenizer fails: .*: change the text"):
            encode(LONG)


def test_a_decoder_that_fails_is_an_error() -> None:
    strip = {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}
    with pytest.raises(NotReadable, match=r"^the tokenizer's decoder fails: "):
        read(decoder=strip)


def test_a_vocabulary_that_fails_is_an_error() -> None:
    model = {**json.loads(BACKEND.to_str())["model"], "continuing_subword_prefix": "#" * 50}
    with pytest.raises(NotReadable, match=r"^not a tokenizer: .* \(tokenizer\.json\)"):
        read(model=model)


@pytest.mark.full
def test_a_published_pattern_that_fails_for_a_text_is_an_error() -> None:
    metadata = gguf_metadata(BACKEND, "llama-bpe")
    with pytest.raises(NotReadable, match=r"^the tokenizer fails: "):
        read_gguf_tokenizer(metadata).encode_prompt("x" + " " * 11_000_000 + "x")


@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": "a"}, {"String": ""}])
@pytest.mark.parametrize(
    ("section", "steps"), [("normalizer", "normalizers"), ("decoder", "decoders")]
)
def test_a_tokenizer_that_makes_texts_too_long_is_refused(
    section: str, steps: str, pattern: dict[str, str]
) -> None:
    step = {"type": "Replace", "pattern": pattern, "content": "a" * 100}
    sequence = {"type": "Sequence", steps: [step] * 5}
    with pytest.raises(NotReadable, match=r"text 1[.\d]*e\+10 times as long \(tokenizer\.json\)"):
        read(**{section: sequence})


def test_half_a_character_in_a_text_is_said() -> None:
    tokenizer = read()
    for encode in (tokenizer.encode_prompt, tokenizer.encode_rendered, tokenizer.encode_whole):
        with pytest.raises(UsageError, match=r"^a text contains a lone surrogate"):
            encode("\ud800")
    with pytest.raises(UsageError, match=r"^a text contains a lone surrogate"):
        tokenizer.encode("\ud800", allow_special=False)
