"""Pre-tokenizers by their `tokenizer.ggml.pre` name: how text is split into words.

Source: the published tokenizer.json files, and the names that llama.cpp's converter gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrs.errors import Unsupported

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{suffix}}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{suffix}}"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_O200K = (
    _CASED_WORDS.replace("{suffix}", f"{_CONTRACTION}?")
    + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = (
    _CASED_WORDS.replace("{suffix}", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
#: Kimi's rules are in its Python code: Chinese characters are words of their own.
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = (
    r"[\p{Han}]+|"
    + _CASED_WORDS.replace(_UPPER, f"{_UPPER[:-1]}{_NOT_HAN}]")
    .replace(_LOWER, f"{_LOWER[:-1]}{_NOT_HAN}]")
    .replace("{suffix}", f"{_CONTRACTION}?")
    + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# Cased letters, as ranges of code points.
_DEEPSEEK_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386
388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57
1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB
1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3
A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A
FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943
"""
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


def _character_class(ranges: str) -> str:
    """Hexadecimal ranges such as `41-5A B5` as the inside of a character class."""
    return "".join(
        "-".join(chr(int(end, 16)) for end in range_.split("-")) for range_ in ranges.split()
    )


@dataclass(frozen=True)
class PreTokenization:
    """Regular expressions that are applied one after the other; each match becomes a word.

    `steps` may also name a step of the tokenizers library: `digits` (each digit is a word),
    `digit-runs`, `punctuation` (runs of it) and `words` (GPT-2's regular expression).
    `ignore_merges`: a word in the vocabulary becomes one token. `add_bos`: the default if the file
    does not say. `nfc`: text is first normalized to NFC. `add_prefix_space`: a space is put before
    a text that begins with none.
    """

    steps: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False
    add_prefix_space: bool = False

    def build(self) -> PreTokenizer:
        """The pre-tokenizer; its last step spells bytes as byte-level vocabularies do."""
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

        parts: list[PreTokenizer] = []
        for step in self.steps:
            if step == "digits":
                parts.append(Digits(individual_digits=True))
            elif step == "digit-runs":
                parts.append(Digits(individual_digits=False))
            elif step == "punctuation":
                parts.append(Punctuation(behavior="contiguous"))
            elif step == "words":
                parts.append(ByteLevel(self.add_prefix_space, use_regex=True))
            else:
                parts.append(Split(Regex(step), behavior="isolated"))
        if "words" not in self.steps:
            parts.append(ByteLevel(self.add_prefix_space, use_regex=False))
        return Sequence(parts)


_DIGITS = PreTokenization(("digits", "words"))
_LLAMA3 = PreTokenization((_CL100K,), ignore_merges=True, add_bos=True)
#: Rules that no GGUF file names, of vocabularies by rank.
KIMI = PreTokenization((_KIMI,), ignore_merges=True)
QWEN_RANKS = PreTokenization((_QWEN2,), ignore_merges=True, nfc=True)
LLAMA4_RANKS = PreTokenization((_O200K,), ignore_merges=True, add_bos=True)
_PLAIN_CL100K = PreTokenization((_CL100K,))

_BY_NAME = {
    "default": PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2"), PreTokenization(("words",))),
    **dict.fromkeys(("olmo", "mpt"), PreTokenization(("words",), nfc=True)),
    **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell"), _DIGITS),
    "command-r": PreTokenization(("digits", "words"), nfc=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _PLAIN_CL100K),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2"), PreTokenization((_QWEN2,), nfc=True)
    ),
    "qwen35": PreTokenization((_QWEN35,), nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenization((_O200K,))),
    "tekken": PreTokenization((_TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-v3": PreTokenization((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_V3)),
    "deepseek-llm": PreTokenization(
        (
            "[\r\n]",
            rf"\s?[{_character_class(_DEEPSEEK_LETTERS)}]+",
            _DEEPSEEK_PUNCTUATION,
            r"\s+$",
            _DEEPSEEK_CJK,
            "digits",
        )
    ),
    "deepseek-coder": PreTokenization(
        ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, "digits")
    ),
    "falcon": PreTokenization(("punctuation", "words", "digit-runs", "[0-9][0-9][0-9]")),
}


def named_pre_tokenizations() -> Iterable[tuple[str, PreTokenization]]:
    """All names of GGUF files and their rules; several may have the same."""
    return _BY_NAME.items()


def find_pre_tokenization(name: str) -> PreTokenization:
    """The pre-tokenization with that name. Raises Unsupported for an unknown name."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise Unsupported(
            f"pre-tokenizer {name!r} of the GGUF file is not known",
            hint="give the model's tokenizer.json with --tokenizer-json",
        ) from None
