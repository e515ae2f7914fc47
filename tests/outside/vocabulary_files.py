# ruff: noqa: RUF001, FLY002, ISC004 - letters of other scripts, and patterns of many parts
"""Tokenizers in files other than tokenizer.json give the ids that the libraries of the files give.

    python tests/outside/vocabulary_files.py [--record] [FILE …]

Trains small SentencePiece models of each kind, and vocabularies by rank, and compares ids and
decoded texts with sentencepiece, tiktoken and mistral-common on hostile texts, and on texts that
hypothesis makes. FILEs are compared as well: SentencePiece models, tekken.json, ranks of Llama 3,
Llama 4 or Qwen (packages that ship some: llama-models, dashscope); without any, those that
mistral-common ships. `--record` writes small models with the ids of the libraries to
tests/text/vocabulary_files.json. Install

    pip install sentencepiece tiktoken mistral-common
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import sentencepiece
import tiktoken
from hypothesis import strategies

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "text")]

from text_samples import texts

from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.tokenizer import Tokenizer

Encode = Callable[[str], list[int]]
RECORD = TESTS / "text" / "vocabulary_files.json"
CORPUS = [text for text in texts(1500, special=False) if text.strip()]
HOSTILE = [
    *("", " ", "  ", "\n", "\t\n \r\n", " a", "a ", "  a  b  ", "\u00a0x\u3000y", "▁", " ▁ ▁a"),
    *("<s>", "</s>x", "<unk>", "<0x41>", "<tool>", "a<tool>b", "[INST]", "\x00\x01", "\ufeffx"),
    *("e\u0301 é ﬁ ① Ａ", "👩\u200d👩\u200d👧 🏳️\u200d🌈", "a" * 50, "ab" * 40, "\U0010ffff\ue000"),
    *("汉字abc漢字ひらがな 々〆〇 x漢", "नमस्ते", "1234567890", "IT'S we'LL 'tis", "…—‘’“”"),
]
#: How tokenization_kimi.py splits texts.
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "control_symbols": ["[INST]", "[/INST]"],
        "allow_whitespace_only_pieces": True,
    },
    "gemma": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<tool>", "\n\n", "\n"],
        "allow_whitespace_only_pieces": True,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
    },
    "unigram": {"model_type": "unigram", "normalization_rule_tsv": True, "byte_fallback": True},
    "unigram-unknown": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "unigram-nmt": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"},
    "unigram-user": {
        "model_type": "unigram",
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<tool>"],
    },
    "bpe-nfkc": {
        "model_type": "bpe",
        "normalization_rule_name": "nfkc_cf",
        "byte_fallback": True,
    },
}
RULES = [("ﬁ", "fi"), ("Ａ", "A"), ("é", "e\u0301"), ("…", "..."), ("\t", " "), ("\u3000", " ")]


def trained(settings: dict[str, Any]) -> bytes:
    """A SentencePiece model of about 500 pieces."""
    settings = dict(settings)
    with tempfile.TemporaryDirectory() as folder:
        if settings.get("normalization_rule_tsv"):
            path = Path(folder) / "rules.tsv"
            rows = ([" ".join(f"{ord(c):X}" for c in text) for text in rule] for rule in RULES)
            path.write_text("".join("\t".join(row) + "\n" for row in rows))
            settings["normalization_rule_tsv"] = str(path)
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=model,
            vocab_size=700,
            hard_vocab_limit=False,
            character_coverage=0.98,
            minloglevel=2,
            **settings,
        )
        return model.getvalue()


def ranks() -> list[bytes]:
    """Tokens by rank, as tiktoken's own trainer makes them."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, trainers
    from tokenizers.pre_tokenizers import ByteLevel

    from mrs.text.tokenizer import byte_of_character

    backend = Backend(models.BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    of = byte_of_character()
    by_id = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(of[c] for c in text) for text, _ in by_id]
    return [bytes([i]) for i in range(256)] + [token for token in tokens if len(token) > 1]


def read(name: str, data: bytes, config: dict[str, Any], model_type: str) -> Tokenizer:
    settings = {
        "tokenizer_config.json": json.dumps(config),
        "config.json": json.dumps({"model_type": model_type}),
    }

    def read_bytes(file: str) -> bytes | None:
        return data if file == name else None

    return read_hf_tokenizer(settings.get, read_bytes)


def tekken_file(tokens: list[bytes], *, lists_special: bool) -> bytes:
    vocab = [
        {
            "rank": i,
            "token_bytes": base64.b64encode(t).decode(),
            "token_str": t.decode("utf-8", "replace"),
        }
        for i, t in enumerate(tokens)
    ]
    file: dict[str, Any] = {
        "config": {
            "pattern": TEKKEN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) + 30 - 10,
            "default_num_special_tokens": 30,
            "version": "v11" if lists_special else "v3",
        },
        "vocab": vocab,
    }
    if lists_special:
        names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>", "[THINK]"]
        file["special_tokens"] = [
            {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(names)
        ]
    return json.dumps(file).encode()


def tekkenizer(data: bytes) -> Any:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tekken.json"
        path.write_bytes(data)
        return Tekkenizer.from_file(path)


Case = tuple[str, str, bytes, dict[str, Any], str, Encode, Callable[[list[int]], str]]


def small_cases() -> Iterator[Case]:
    for name, settings in SENTENCEPIECE.items():
        data = trained(settings)
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        yield name, "tokenizer.model", data, {}, "llama", processor.encode, processor.decode
    tokens = ranks()
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    by_rank = {token: rank for rank, token in enumerate(tokens)}
    for name, config, pattern, form in (
        (
            "kimi",
            {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}},
            KIMI,
            "",
        ),
        ("qwen", {"tokenizer_class": "QWenTokenizer"}, QWEN, "NFC"),
    ):
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=by_rank, special_tokens={}
        )
        yield (
            name,
            "tiktoken.model",
            lines,
            config,
            name,
            of_tiktoken(encoding, form),
            encoding.decode,
        )
    for name, lists_special in (("tekken", True), ("tekken-old", False)):
        data = tekken_file(tokens, lists_special=lists_special)
        yield of_tekken(name, data)


def of_tekken(name: str, data: bytes) -> Case:
    made = tekkenizer(data)

    def encode(text: str) -> list[int]:
        return list(made.encode(text, bos=False, eos=False))

    return name, "tekken.json", data, {}, "mistral", encode, made.decode


def of_tiktoken(encoding: tiktoken.Encoding, form: str) -> Encode:
    def encode(text: str) -> list[int]:
        text = unicodedata.normalize("NFC", text) if form else text
        return encoding.encode(text, disallowed_special=())

    return encode


def shipped() -> list[Path]:
    import mistral_common

    folder = Path(mistral_common.__file__).parent / "data"
    return [
        path
        for path in sorted(folder.iterdir())
        if "tokenizer" in path.name or "tekken" in path.name
    ]


def real_cases(paths: list[Path]) -> Iterator[Case]:
    for path in paths:
        data = path.read_bytes()
        if data.startswith(b"{"):
            yield of_tekken(path.name, data)
            tokens = [base64.b64decode(row["token_bytes"]) for row in json.loads(data)["vocab"]]
            yield of_ranks(f"{path.name} as Llama 3", tokens[:128_000])
        elif data.startswith(b"\n"):
            processor = sentencepiece.SentencePieceProcessor(model_proto=data)
            yield (
                path.name,
                "tokenizer.model",
                data,
                {},
                "llama",
                processor.encode,
                processor.decode,
            )
        else:
            tokens = [base64.b64decode(line.split()[0]) for line in data.splitlines()]
            yield of_ranks(f"{path.parent.name}/{path.name}", tokens)


def of_ranks(name: str, tokens: list[bytes]) -> Case:
    """A vocabulary of Llama 3, Llama 4 or Qwen, as its number of tokens says."""
    lines = b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens))
    model_type, pattern, form, config = {
        128_000: ("llama", CL100K, "", {}),
        200_000: ("llama4", O200K, "", {"added_tokens_decoder": {"200000": {"content": "<|b|>"}}}),
    }.get(len(tokens), ("qwen", QWEN, "NFC", {"tokenizer_class": "QWenTokenizer"}))
    encoding = tiktoken.Encoding(
        name,
        pat_str=pattern,
        mergeable_ranks={t: i for i, t in enumerate(tokens)},
        special_tokens={},
    )
    encode = of_tiktoken(encoding, form)
    return name, "tokenizer.model", lines, config, model_type, encode, encoding.decode


def compare(case: Case) -> tuple[int, int, int]:
    """How many texts were compared, and of how many ids and decoded texts differ."""
    name, file, data, config, model_type, encode, decode = case
    ours = read(file, data, config, model_type)
    compared = wrong_ids = wrong_texts = 0

    def check(text: str) -> None:
        nonlocal compared, wrong_ids, wrong_texts
        compared += 1
        ids = ours.encode(text, allow_special=False)
        expected = encode(text)
        if ids != expected:
            wrong_ids += 1
            if wrong_ids <= 3:
                print(f"  {name}: {text!r} gives {ids}, not {expected}")
        elif ours.decode(ids) != decode(ids):
            wrong_texts += 1
            if wrong_texts <= 3:
                print(f"  {name}: {ids} are {ours.decode(ids)!r}, not {decode(ids)!r}")

    for text in (*HOSTILE, *texts(3000, special=False)):
        check(text)
    hypothesis.settings(max_examples=1000, deadline=None, database=None, derandomize=True)(
        hypothesis.given(strategies.text(max_size=60))(check)
    )()
    return compared, wrong_ids, wrong_texts


def recorded(case: Case) -> dict[str, Any]:
    """A model and the ids of its library, for the tests."""
    _, file, data, config, model_type, encode, decode = case
    strings = [*HOSTILE, *texts(60, special=False)]
    ids = [encode(text) for text in strings]
    return {
        "file": file,
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
        "config": config,
        "model_type": model_type,
        "ids": ids,
        "decoded": [decode(each) for each in ids],
    }


def main() -> None:
    arguments = sys.argv[1:]
    cases = list(small_cases())
    if "--record" in arguments:
        kept = [case for case in cases if case[0] not in ("unigram-nmt", "bpe-nfkc")]
        record = {
            "_": "Small models in the files' formats, and the ids that sentencepiece 0.2.3, "
            "tiktoken 0.14.0 and mistral-common 1.13.1 give for the strings.",
            "strings": [*HOSTILE, *texts(60, special=False)],
            "models": {case[0]: recorded(case) for case in kept},
        }
        RECORD.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    named = [Path(argument) for argument in arguments if not argument.startswith("-")]
    failed = False
    # A combining mark after a character that a rule changes is lost by the library tokenizers, and
    # sentencepiece shows unknown tokens as " ⁇ ": texts of the unigram models differ by these.
    for case in (*cases, *real_cases(named or shipped())):
        compared, wrong_ids, wrong_texts = compare(case)
        failed |= bool(wrong_ids or wrong_texts)
        print(f"{case[0]:48} {compared} texts, {wrong_ids} other ids, {wrong_texts} other texts")
    sys.exit(failed)


if __name__ == "__main__":
    main()
