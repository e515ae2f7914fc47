"""BERT's `vocab.txt`: a piece on each line, whose other rules are in the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.errors import Unsupported
from mrs.text.vocabulary import Around, Described, TokenType, Vocabulary, WordPieceRules

_ROLES = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_MODEL_TYPES = ("bert", "distilbert", "electra", "nomic_bert")


def read_word_pieces(
    data: bytes,
    config: Mapping[str, Any],
    *,
    class_name: str | None,
    model_type: str,
    where: str,
) -> Described:
    """The tokenizer in the file.

    Raises Unsupported for a class whose rules are not known, UnicodeDecodeError for other data.
    """
    lines = data.decode("utf-8-sig").split("\n")
    if class_name not in _CLASSES and (class_name is not None or model_type not in _MODEL_TYPES):
        whose = "no tokenizer_class says" if class_name is None else f"{class_name} is not known,"
        raise Unsupported(
            f"{whose} {'how' if class_name is None else 'which says how'} texts become words",
            where=where,
            hint=f"known are {', '.join(_CLASSES)}; or give the model's tokenizer.json with -t",
        )
    texts = [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
    roles = {role: _text(config.get(role), text) for role, text in _ROLES.items()}
    first, last = roles["cls_token"], roles["sep_token"]
    return Described(
        Vocabulary(texts, [TokenType.NORMAL] * len(texts)),
        WordPieceRules(
            lowercase=config.get("do_lower_case", True) is True,
            strips_accents=config.get("strip_accents"),
            splits_chinese=config.get("tokenize_chinese_chars", True) is True,
        ),
        special_tokens=roles,
        around=Around([first, "$A", last], [first, "$A", last, "$B:1", f"{last}:1"]),
        where=where,
    )


def _text(named: Any, default: str) -> str:
    text = named.get("content") if isinstance(named, Mapping) else named
    return text if isinstance(text, str) else default
