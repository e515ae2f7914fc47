"""Text of a reply while its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gguf_sentencepiece import metadata_of
from text_samples import gguf_metadata, published_pre_tokenizers, texts, train_byte_level

from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.stop_strings import StopStrings
from mrs.text.stream_decoder import StreamDecoder
from mrs.text.tokenizer import Tokenizer

BYTE_LEVEL = read_gguf_tokenizer(
    gguf_metadata(train_byte_level(published_pre_tokenizers()["smollm"]), "smollm")
)
TOKENIZERS = {
    "byte-level": BYTE_LEVEL,
    "llama": read_gguf_tokenizer(metadata_of("llama")),
    "gemma": read_gguf_tokenizer(metadata_of("gemma")),
}


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [decoder.push(token_id) for token_id in ids]


def stopped(pieces: Sequence[str], *strings: str) -> tuple[list[str], str | None]:
    """The parts that remain of a text, and the string that ended it."""
    stops = StopStrings(strings)
    return [*map(stops.push, pieces), stops.finish()], stops.found


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_parts_make_the_whole(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for text in texts(300):
        ids = tokenizer.encode(text, allow_special=True)
        parts = stream(tokenizer, ids)
        assert "".join(parts) == tokenizer.decode(ids)
        if "\ufffd" not in text:
            assert "\ufffd" not in "".join(parts)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_same_text_as_the_library_decodes(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for text in texts(300, special=False):
        ids = tokenizer.encode(text, allow_special=False)
        assert tokenizer.decode(ids) == tokenizer.backend.decode(ids)


@given(ids=st.lists(st.integers(0, BYTE_LEVEL.backend.get_vocab_size() + 3), max_size=40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_tokens_at_all(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        parts = stream(tokenizer, ids)
        joined, whole = "".join(parts), tokenizer.decode(ids)
        # An incomplete character at the end is shown by nobody who still expects more of it.
        assert whole.startswith(joined)
        assert set(whole[len(joined) :]) <= {"\ufffd"}


@pytest.mark.parametrize("token_id", [-1, 2**32 - 1, 2**32, 2**70])
def test_an_id_without_a_token_is_no_text(token_id: int) -> None:
    assert [each.decode([token_id]) for each in TOKENIZERS.values()] == [""] * len(TOKENIZERS)


def test_half_a_character_waits_for_its_other_half() -> None:
    smile = "\U0001f600"
    tokenizer = TOKENIZERS["llama"]
    ids = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in smile.encode()]
    assert stream(tokenizer, ids) == ["", "", "", smile]
    assert stream(tokenizer, ids[:3]) == [""] * 3


def test_the_first_space_of_a_sentencepiece_reply() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = tokenizer.encode("the quick", allow_special=False)
    assert "".join(stream(tokenizer, ids)) == "the quick"
    decoder = StreamDecoder(tokenizer, continues_text=True)
    assert "".join(map(decoder.push, ids)) == " the quick"
    ids = TOKENIZERS["gemma"].encode(" the", allow_special=False)
    assert "".join(stream(TOKENIZERS["gemma"], ids)) == " the"


def test_only_the_first_space_is_dropped() -> None:
    tokenizer = TOKENIZERS["llama"]
    space = tokenizer.backend.token_to_id("\u2581")
    assert space is not None
    assert "".join(stream(tokenizer, [space, space, space])) == "  "


def test_a_stop_string_across_pieces() -> None:
    parts, found = stopped(["one", " two\nUs", "er", ": three", "four"], "\nUser:", "\nSystem:")
    assert "".join(parts) == "one two"
    assert found == "\nUser:"


def test_the_start_of_a_stop_string_is_delayed_and_then_output() -> None:
    assert stopped("abcabd", "abd", "cabx") == (["", "", "ab", "", "", "c", ""], "abd")
    assert stopped("abcab", "abd", "cabx") == (["", "", "ab", "", "", "cab"], None)


@given(
    pieces=st.lists(st.text("ab\u00e9\U0001f600", max_size=4), max_size=20),
    strings=st.lists(st.text("ab\u00e9\U0001f600", min_size=1, max_size=4), max_size=3),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_stop_string_that_is_complete_first_wins(pieces: list[str], strings: list[str]) -> None:
    text = "".join(pieces)
    parts, found = stopped(pieces, *strings)
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in strings if stop in text]
    assert "".join(parts) == (text[: min(ends)[1]] if ends else text)
    assert (found is not None) == bool(ends)


def test_nothing_is_delayed_without_need() -> None:
    for text in texts(50, special=False):
        stops = StopStrings(["STOP"])
        for letter in text:
            stops.push(letter)
            assert len(stops._pending) <= 3
