"""Reads a tokenizer from tokenizer.json and its settings files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable
from mrs.text.backend import backend_errors, parse_backend
from mrs.text.json_files import read_object
from mrs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


def read_hf_tokenizer(read_text: Callable[[str], str | None]) -> Tokenizer:
    """The tokenizer of a model; `read_text` returns the text of a file by name, or None.

    tokenizer_config.json may add tokens to tokenizer.json, change how they match, name the special
    tokens, and say whether a raw prompt starts with bos; in older models special_tokens_map.json
    names them. Raises NotReadable without a tokenizer.json or if a file is malformed.
    """
    text = read_text("tokenizer.json")
    if text is None:
        raise NotReadable(
            "the model has no tokenizer.json",
            hint="give one with -t, or choose a model that has one",
        )
    config = read_object(read_text, "tokenizer_config.json")
    backend = parse_backend(text)
    backend.no_truncation()
    backend.no_padding()
    named = special_token_texts({**read_object(read_text, "special_tokens_map.json"), **config})
    _add_configured_tokens(backend, config.get("added_tokens_decoder"))
    _make_special(backend, named.values())
    add_bos = config.get("add_bos_token")
    return Tokenizer(
        backend,
        special_tokens=named,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
    )


def special_token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens in a tokenizer_config.json by role; each is a text or an object."""
    texts = {}
    for role in _ROLES:
        value = config.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            texts[role] = text
    return texts


def _make_special(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Makes special tokens of the vocabulary match in text; those it lacks stay plain text."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    in_vocabulary = [text for text in dict.fromkeys(texts) if backend.token_to_id(text) is not None]
    with backend_errors():
        backend.add_special_tokens([text for text in in_vocabulary if text not in known])


def _add_configured_tokens(backend: tokenizers.Tokenizer, configured: Any) -> None:
    """Adds the tokens of `added_tokens_decoder` that tokenizer.json lacks or defines otherwise."""
    from tokenizers import AddedToken

    if not isinstance(configured, dict):
        return
    known = {str(i): repr(token) for i, token in backend.get_added_tokens_decoder().items()}
    for token_id, fields in sorted(configured.items(), key=lambda item: item[0].zfill(12)):
        if not isinstance(fields, dict) or not isinstance(fields.get("content"), str):
            raise NotReadable(
                f"added token {token_id} has no content", where="tokenizer_config.json"
            )
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        token = AddedToken(
            fields["content"], **{name: bool(fields[name]) for name in flags if name in fields}
        )
        if known.get(token_id) != repr(token):
            with backend_errors():
                backend.add_tokens([token])
