"""Added tokens that are no control tokens are text, and decoded as the libraries decode them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from test_gguf_sentencepiece import PREFIX, metadata_of
from text_samples import gguf_metadata, published_pre_tokenizers, train_byte_level
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from mrs.text.gguf_tokenizer import TokenType, read_gguf_tokenizer
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.stream_decoder import StreamDecoder
from mrs.text.tokenizer import Tokenizer

SPACE = "\u2581"
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
ADDED = [
    *(SPACE * count for count in range(2, 32)),
    *("\n" * count for count in range(1, 6)),
    *("\t\t", "<table>", "</table>", "<h1>", "<strong>", "<unused0>", "[multimodal]", "a\u2581b"),
]
CODE = "def f(x):\n    if x:\n        return  x\n\n\treturn <h1>a  b</h1>\n"


def gemma_like() -> Backend:
    """Spaces as Gemma's published tokenizer spells them: a BPE with byte fallback, no prefix."""
    pieces = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *ADDED]
    pieces += [*map(chr, range(33, 127)), SPACE, "\n", "\t", "re", "ret", f"{SPACE}x", f"{SPACE}i"]
    vocab = {text: index for index, text in enumerate(dict.fromkeys(pieces))}
    merges = [("r", "e"), ("re", "t"), (SPACE, "x"), (SPACE, "i")]
    merges += [(SPACE * (n - cut), SPACE * cut) for n in range(2, 32) for cut in range(1, n)]
    backend = Backend(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    backend.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return backend


def llama_like() -> Backend:
    """The same with a space before each text, which is the tokenizer's own."""
    backend = gemma_like()
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    backend.decoder = decoders.Sequence(
        [
            *(decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def byte_level() -> Backend:
    backend = train_byte_level(published_pre_tokenizers()["smollm"])
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("    ", "<h1>", "\u0120x")])
    return backend


BACKENDS = {"gemma": gemma_like, "llama": llama_like, "byte-level": byte_level}


def _is_whole(piece: bytes) -> bool:
    return "\ufffd" not in piece.decode("utf-8", "replace")


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(map(StreamDecoder(tokenizer).push, ids))


def read(backend: Backend) -> Tokenizer:
    return read_hf_tokenizer({"tokenizer.json": backend.to_str()}.get)


def test_indented_code_of_gemma_comes_back() -> None:
    ours = read(gemma_like())
    ids = ours.encode(CODE, allow_special=False)
    assert ours.added_ids[SPACE * 8] in ids
    assert ours.decode(ids) == streamed(ours, ids) == CODE


@pytest.mark.parametrize("name", BACKENDS)
def test_same_text_as_the_libraries(name: str, tmp_path: Path) -> None:
    backend = BACKENDS[name]()
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    ours, reference = read(backend), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    added = list(ours.added_ids.values())
    # What is no UTF-8 has more than one spelling in the libraries themselves.
    whole = [i for i in range(ours.backend.get_vocab_size()) if _is_whole(ours.piece(i))]
    draw = random.Random(5)
    for _ in range(300):
        ids = draw.choices(added, k=4) + draw.choices(whole, k=4)
        draw.shuffle(ids)
        expected = backend.decode(ids, skip_special_tokens=True)
        assert reference.decode(ids, skip_special_tokens=True) == expected
        assert ours.decode(ids) == expected
        assert streamed(ours, ids) == expected


@pytest.mark.parametrize("spelling", [" ", SPACE])
def test_user_defined_tokens_of_a_gguf_file(spelling: str) -> None:
    """Converters write runs of spaces plainly or as SentencePiece does."""
    metadata = metadata_of("gemma")
    for text, kind in ((spelling * 4, TokenType.USER_DEFINED), ("<h1>", TokenType.USER_DEFINED)):
        metadata[PREFIX + "tokens"] = [*metadata[PREFIX + "tokens"], text]
        metadata[PREFIX + "scores"] = [*metadata[PREFIX + "scores"], -1000.0]
        metadata[PREFIX + "token_type"] = [*metadata[PREFIX + "token_type"], int(kind)]
    ours = read_gguf_tokenizer(metadata)
    spaces, tag = ours.added_ids[spelling * 4], ours.added_ids["<h1>"]
    ids = [spaces, *ours.encode("the", allow_special=False), tag, spaces]
    assert ours.decode(ids) == streamed(ours, ids) == "    the<h1>    "


def test_an_added_word_with_an_accent_is_no_spelling_of_bytes() -> None:
    backend = train_byte_level(published_pre_tokenizers()["smollm"])
    backend.add_tokens([AddedToken("n\u00e3o", normalized=False)])
    for ours in (read(backend), read_gguf_tokenizer(gguf_metadata(backend, "smollm"))):
        ids = ours.encode("n\u00e3o", allow_special=False)
        assert ours.decode(ids) == streamed(ours, ids) == "n\u00e3o"
