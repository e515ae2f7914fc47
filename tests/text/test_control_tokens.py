"""What a person writes never becomes a control token; what a template writes does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gguf_sentencepiece import metadata_of
from text_samples import CONTROL, gguf_metadata, published_pre_tokenizers, texts, train_byte_level
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.tokenizer import Tokenizer as OurTokenizer

PUBLISHED = published_pre_tokenizers()


def byte_level(name: str) -> OurTokenizer:
    return read_gguf_tokenizer(gguf_metadata(train_byte_level(PUBLISHED[name]), name))


SMOLLM = byte_level("smollm")


def sentencepiece(name: str) -> OurTokenizer:
    return read_gguf_tokenizer(metadata_of(name))


@pytest.fixture(scope="module", params=["qwen2", "llama-bpe", "smollm", "llama", "gemma"])
def ours(request: pytest.FixtureRequest) -> OurTokenizer:
    name: str = request.param
    return sentencepiece(name) if name in ("llama", "gemma") else byte_level(name)


def is_control(tokenizer: OurTokenizer, ids: list[int]) -> bool:
    return not set(tokenizer.control_ids.values()).isdisjoint(ids)


def test_contents_stay_text(ours: OurTokenizer) -> None:
    spelled = [text for text in texts(600) if any(token in text for token in ours.control_ids)]
    assert len(spelled) > 50
    for text in spelled:
        ids = ours.encode(text, allow_special=False)
        assert not is_control(ours, ids)
        assert is_control(ours, ours.encode(text, allow_special=True))


def test_contents_are_encoded_as_if_there_were_no_such_token() -> None:
    reference = train_byte_level(PUBLISHED["smollm"])
    ours = read_gguf_tokenizer(gguf_metadata(reference, "smollm"))
    bare = Tokenizer(reference.model)
    bare.pre_tokenizer = reference.pre_tokenizer
    bare.add_tokens(
        [AddedToken(t, normalized=False) for t in ("<think>", "</think>", "<tool_call>")]
    )
    for text in texts(800):
        ids = ours.encode(text, allow_special=False)
        expected = bare.encode(text, add_special_tokens=False).tokens
        assert [ours.backend.id_to_token(token_id) for token_id in ids] == expected


@pytest.mark.parametrize("name", ["qwen2", "deepseek-v3", "gemma"])
def test_texts_that_spell_no_token_are_encoded_as_ever(name: str) -> None:
    ours = sentencepiece(name) if name == "gemma" else byte_level(name)
    for text in texts(500, special=False):
        around = f"<s>{ours.protect(text)}</s>"
        assert ours.encode_rendered(around) == ours.encode(f"<s>{text}</s>", allow_special=True)


def test_a_template_keeps_its_own_tokens(ours: OurTokenizer) -> None:
    for text in (token for token in ours.control_ids if token.startswith("<")):
        content = f"say {text}{text} or{text}"
        rendered = f"<s>{ours.protect(content)}</s>\n"
        ids = ours.encode_rendered(rendered)
        assert [i for i in ids if i in ours.control_ids.values()] == [
            ours.control_ids["<s>"],
            ours.control_ids["</s>"],
        ]
        assert content in ours.decode(ids)


def test_the_rest_of_the_prompt_is_as_in_a_plain_rendering(ours: OurTokenizer) -> None:
    """Only what stands between two control tokens of the template may change."""
    before, after = "<s>system\nBe kind, <tool_call> or not.</s>", "<s> assistant\n"
    rendered = f"{before}<s>{ours.protect('a <s> b')}</s>{after}"
    plain = f"{before}<s>a - b</s>{after}"
    ids, expected = ours.encode_rendered(rendered), ours.encode(plain, allow_special=True)
    at_start = ours.encode(before, allow_special=True)
    at_end = ours.encode(f"</s>{after}", allow_special=True)
    assert ids[: len(at_start)] == expected[: len(at_start)] == at_start
    assert ids[-len(at_end) :] == expected[-len(at_end) :] == at_end


@pytest.mark.parametrize("cut", ["open", "close", "both", "inside"])
def test_templates_that_cut_the_marks_away(cut: str) -> None:
    ours = byte_level("qwen2")
    content = ours.protect("a <|im_end|> b")
    opening, closing = content[2], content[-3]
    damaged = {
        "open": content.replace(opening, ""),
        "close": content.replace(closing, ""),
        "both": content.replace("<|im_end|>", ""),
        "inside": content.replace("im_", ""),
    }[cut]
    ids = ours.encode_rendered(f"<s>{damaged}</s>")
    assert [i for i in ids if i in ours.control_ids.values()] == [
        ours.control_ids["<s>"],
        ours.control_ids["</s>"],
    ]


def test_nobody_can_forge_the_marks() -> None:
    ours = byte_level("qwen2")
    marks = [chr(code) for code in range(0xFDD0, 0xFDF0)]
    for mark in marks:
        for content in (f"<|im_{mark}end|>", f"{mark}<|im_end|>{mark}", f"{mark}5{mark}"):
            ids = ours.encode_rendered(f"<s>{ours.protect(content)}</s>")
            assert ids[0] == ours.control_ids["<s>"]
            assert ids[-1] == ours.control_ids["</s>"]
            assert not is_control(ours, ids[1:-1])


@pytest.mark.full
@given(
    st.lists(
        st.sampled_from([*CONTROL, *map(chr, range(0xFDD0, 0xFDD4)), "<|im_", "end|>", "a", " "])
    )
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_mixture_of_tokens_and_marks(parts: list[str]) -> None:
    content = "".join(parts)
    shown = "".join(c for c in content if not 0xFDD0 <= ord(c) <= 0xFDD3)
    ids = SMOLLM.encode_rendered(SMOLLM.protect(content))
    assert not is_control(SMOLLM, ids)
    assert SMOLLM.decode(ids) == shown


def test_pieces_that_spell_a_control_token_are_out_of_reach() -> None:
    """A vocabulary may hold merges that build `<s>`, and a unigram model takes pieces whole."""
    vocab = {"<unk>": 0, "<s>": 1, "<": 2, "s": 3, ">": 4, "<s": 5, "a": 6}
    bpe = models.BPE(vocab, [("<", "s"), ("<s", ">")], unk_token="<unk>")
    unigram = models.Unigram([(text, -1.0) for text in vocab], unk_id=0, byte_fallback=False)
    for model in (bpe, unigram):
        backend = Tokenizer(model)
        backend.normalizer = normalizers.NFC()
        backend.add_special_tokens(["<unk>", "<s>"])
        backend.decoder = decoders.Metaspace()
        ours = OurTokenizer(backend, special_tokens={})
        assert ours.encode("a<s>", allow_special=True) == [6, 1]
        assert not is_control(ours, ours.encode("a<s>", allow_special=False))


def test_control_tokens_know_their_text() -> None:
    ours = byte_level("qwen2")
    assert set(ours.control_ids) == set(CONTROL)
    assert all(ours.piece(token_id) == b"" for token_id in ours.control_ids.values())
