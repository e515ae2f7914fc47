"""Files in tiktoken's format: a token of bytes in base64 and its rank on each line.

They say neither how texts become words nor which control tokens follow: for each vocabulary below,
that stands in Python code beside the published file.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mrs.errors import NotReadable, Unsupported
from mrs.text.pre_tokenizers import (
    KIMI,
    LLAMA4_RANKS,
    QWEN_RANKS,
    PreTokenization,
    find_pre_tokenization,
)
from mrs.text.vocabulary import Described
from mrs.text.vocabulary_files.byte_ranks import described_ranks


@dataclass(frozen=True)
class _Published:
    """How one vocabulary splits texts, its control tokens, and what they are for.

    `control` gives the texts of the control tokens by their place after the ranks, from the number
    of ranks and the texts that tokenizer_config.json has by id.
    """

    rules: PreTokenization
    control: Callable[[int, Mapping[int, str]], list[str]]
    roles: Mapping[str, str]


def _kimi(ranks: int, named: Mapping[int, str]) -> list[str]:
    return [named.get(i, f"<|reserved_token_{i}|>") for i in range(ranks, ranks + 258)]


def _extras(*first: str, count: int) -> Callable[[int, Mapping[int, str]], list[str]]:
    def control(ranks: int, named: Mapping[int, str]) -> list[str]:
        return [*first, *(f"<|extra_{i}|>" for i in range(count))]

    return control


def _llama3(ranks: int, named: Mapping[int, str]) -> list[str]:
    reserved = "<|reserved_special_token_{}|>"
    texts = [
        *("<|begin_of_text|>", "<|end_of_text|>", reserved.format(0), reserved.format(1)),
        *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"),
        *map(reserved.format, range(2, 246)),
    ]
    return [named.get(ranks + i, text) for i, text in enumerate(texts)]


def _as_configured(ranks: int, named: Mapping[int, str]) -> list[str]:
    """The texts in tokenizer_config.json, which must have all from the first to the last."""
    last = max(named, default=ranks - 1)
    missing = [i for i in range(ranks, last + 1) if i not in named]
    if missing or last < ranks:
        raise NotReadable(
            f"no text for the control token {missing[0] if missing else ranks}",
            where="tokenizer_config.json",
            hint="added_tokens_decoder must name the control tokens",
        )
    return [named[i] for i in range(ranks, last + 1)]


_LLAMA_ROLES = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
_QWEN = _extras("<|endoftext|>", "<|im_start|>", "<|im_end|>", count=205)
_HUNYUAN = _extras("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", count=204)
_KIMI = _Published(KIMI, _kimi, {"bos_token": "[BOS]", "eos_token": "[EOS]"})
_LLAMA3 = _Published(find_pre_tokenization("llama-bpe"), _llama3, _LLAMA_ROLES)
_LLAMA4 = _Published(LLAMA4_RANKS, _as_configured, _LLAMA_ROLES)

#: By the class in tokenizer_config.json, with its module where others have the same name.
_BY_CLASS = {
    "tokenization_kimi.TikTokenTokenizer": _KIMI,
    "tokenization_moonshot.TikTokenTokenizer": _KIMI,
    "QWenTokenizer": _Published(QWEN_RANKS, _QWEN, {"eos_token": "<|endoftext|>"}),
    "HYTokenizer": _Published(
        QWEN_RANKS,
        _HUNYUAN,
        {"bos_token": "<|startoftext|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"},
    ),
}
#: Files without a class, as their makers publish them: by model type and number of ranks.
_BY_SIZE = {
    ("llama", 128_000): _LLAMA3,
    ("llama4", 200_000): _LLAMA4,
}


def read_tiktoken(
    data: bytes,
    named: Mapping[int, str],
    *,
    class_name: str | None,
    model_type: str,
    where: str,
) -> Described:
    """The tokenizer in a file of ranks; `named` are texts of control tokens by id.

    Raises NotReadable if it is malformed, Unsupported if nothing says how it splits texts.
    """
    tokens = _tokens(data, where)
    kind = _BY_SIZE.get((model_type, len(tokens)))
    if class_name is not None:
        kind = _BY_CLASS.get(class_name) or _BY_CLASS.get(class_name.rpartition(".")[2]) or kind
    if kind is None:
        whose = "without a tokenizer_class" if class_name is None else f"of class {class_name}"
        raise Unsupported(
            f"{len(tokens)} ranks {whose}, which say nothing of how texts become words",
            where=where,
            hint="give the model's tokenizer.json with -t",
        )
    after = kind.control(len(tokens), named)
    return described_ranks(tokens, kind.rules, after=after, roles=kind.roles, where=where)


def _tokens(data: bytes, where: str) -> list[bytes]:
    """The tokens by rank. Raises NotReadable."""
    tokens: list[bytes] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            tokens.append(binascii.a2b_base64(token, strict_mode=True))
            if int(rank) != len(tokens) - 1:
                raise ValueError(f"rank {int(rank)} at place {len(tokens) - 1}")
        except ValueError as error:
            raise NotReadable(f"line {number}: {error}", where=where) from error
    return tokens
