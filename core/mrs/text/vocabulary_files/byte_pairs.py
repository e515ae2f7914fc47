"""`vocab.json` and `merges.txt`: byte-level BPE, whose other rules are those of a Python class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.text.json_files import parse_object
from mrs.text.pre_tokenizers import PreTokenization, find_pre_tokenization
from mrs.text.vocabulary import Around, Described, TokenType, Vocabulary

_END = "<|endoftext|>"


@dataclass(frozen=True)
class _Class:
    """The rules of a class of transformers, and its tokens where the settings name none."""

    rules: PreTokenization
    roles: Mapping[str, str] = field(default_factory=dict)
    is_encoder: bool = False


_GPT2 = _Class(
    find_pre_tokenization("gpt-2"), {"bos_token": _END, "eos_token": _END, "unk_token": _END}
)
_QWEN_ROLES = {"eos_token": _END, "pad_token": _END, "unk_token": _END}
_CLASSES = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "GPTNeoXTokenizer": _Class(
        find_pre_tokenization("olmo"), {**_GPT2.roles, "pad_token": "<|padding|>"}
    ),
    "Qwen2Tokenizer": _Class(find_pre_tokenization("qwen2"), _QWEN_ROLES),
    "Qwen3_5Tokenizer": _Class(find_pre_tokenization("qwen35"), _QWEN_ROLES),
    "RobertaTokenizer": _Class(
        find_pre_tokenization("gpt-2"),
        {
            "bos_token": "<s>",
            "cls_token": "<s>",
            "eos_token": "</s>",
            "sep_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        is_encoder=True,
    ),
}
#: The class of models whose files name none.
_CLASS_OF = {
    **dict.fromkeys(("gpt2", "gptj", "opt", "phi", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(
        ("falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe"), "GPTNeoXTokenizer"
    ),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "Qwen3_5Tokenizer"),
}


def read_byte_pairs(
    data: bytes,
    merges: bytes | None,
    config: Mapping[str, Any],
    *,
    class_name: str | None,
    model_type: str,
    where: str,
) -> Described:
    """The tokenizer in the two files, as the class in the settings `config` reads them.

    Raises Unsupported for a class whose rules are not known, and NotReadable.
    """
    name = class_name or _CLASS_OF.get(model_type)
    kind = _CLASSES.get(name or "")
    if kind is None:
        whose = "no tokenizer_class says" if name is None else f"{name} is not known, which says"
        raise Unsupported(
            f"{whose} how texts become words",
            where=where,
            hint=f"known are {', '.join(_CLASSES)}; or give the model's tokenizer.json with -t",
        )
    if merges is None:
        raise NotReadable("merges.txt is missing", where=where, hint="it belongs to vocab.json")
    rules = replace(kind.rules, add_prefix_space=config.get("add_prefix_space") is True)
    roles = dict(kind.roles)
    around = None
    if kind.is_encoder:
        around = _around_encoded({**roles, **config})
    vocabulary = _vocabulary(data, where)
    return Described(vocabulary, rules, _merges(merges), roles, around=around, where=where)


def _around_encoded(tokens: Mapping[str, Any]) -> Around:
    first, last = (_text(tokens[role]) for role in ("cls_token", "sep_token"))
    return Around([first, "$A", last], [first, "$A", last, last, "$B", last])


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def _vocabulary(data: bytes, where: str) -> Vocabulary:
    ids = parse_object(data.decode("utf-8-sig"), where)
    texts = {token_id: text for text, token_id in ids.items() if type(token_id) is int}
    if len(texts) < len(ids) or sorted(texts) != list(range(len(texts))):
        raise NotReadable("its ids are not 0, 1, 2 and so on", where=where)
    return Vocabulary([texts[i] for i in range(len(texts))], [TokenType.NORMAL] * len(texts))


def _merges(data: bytes) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        if not line.strip() or line.startswith("#version"):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise NotReadable(f"line {number} is not two tokens", where="merges.txt")
        merges.append((pair[0], pair[1]))
    return merges
