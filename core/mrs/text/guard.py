"""Keeps text that spells a control token from becoming that token.

Contents are marked before a template renders them; the template's own control tokens are then
respelled with private characters, and the whole is encoded in one go by a copy of the tokenizer
that knows the control tokens under those spellings alone. Everything else about the encoding
(normalizer, prefix spaces, words across the border of template and content) stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mrs.errors import UsageError

if TYPE_CHECKING:
    import tokenizers

# Code points that Unicode keeps out of interchanged text, for a program's own use.
OPEN, CLOSE, _ALIAS_START, _ALIAS_END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_RESERVED = dict.fromkeys(map(ord, (OPEN, CLOSE, _ALIAS_START, _ALIAS_END)))


def marked(text: str) -> str:
    """`text` as one that `ControlGuard.encode` leaves as it is."""
    return f"{OPEN}{text}{CLOSE}"


class ControlGuard:
    """Marks control tokens in contents, and encodes texts in which some are marked."""

    def __init__(self, backend: tokenizers.Tokenizer, control_ids: Mapping[str, int]) -> None:
        self._backend = backend
        self._control_ids = control_ids
        any_control = _any_of(control_ids)
        self._control = re.compile(any_control)
        # A template may cut one mark of a pair away: the token at the other one is still text.
        self._marked = re.compile(f"{OPEN}({any_control})|({any_control}){CLOSE}|[{OPEN}{CLOSE}]")

    def spells_control(self, text: str) -> bool:
        return self._control.search(text) is not None

    def protect(self, content: str) -> str:
        """`content` with the control tokens that it spells marked as text. Raises UsageError."""
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise UsageError("a message holds half a character, which no model can read") from error
        return self._control.sub(lambda m: marked(m[0]), content.translate(_RESERVED))

    def encode(self, text: str) -> list[int]:
        if OPEN not in text and CLOSE not in text:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        pieces = self._marked.split(text)
        for start in range(0, len(pieces), 3):
            pieces[start] = self._control.sub(lambda m: self._aliases[m[0]], pieces[start])
        respelled = "".join(piece for piece in pieces if piece)
        ids = self._respelled_backend.encode(respelled, add_special_tokens=False).ids
        return [self._original_ids.get(token_id, token_id) for token_id in ids]

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return {text: f"{_ALIAS_START}{i}{_ALIAS_END}" for text, i in self._control_ids.items()}

    @cached_property
    def _original_ids(self) -> Mapping[int, int]:
        alias_ids = map(self._respelled_backend.token_to_id, self._aliases.values())
        originals = map(self._control_ids.__getitem__, self._aliases)
        return {
            alias: i for alias, i in zip(alias_ids, originals, strict=True) if alias is not None
        }

    @cached_property
    def _respelled_backend(self) -> tokenizers.Tokenizer:
        import tokenizers

        settings = json.loads(self._backend.to_str())
        for token in settings["added_tokens"]:
            token["content"] = self._aliases.get(token["content"], token["content"])
        settings["post_processor"] = None
        _respell_model(settings["model"], self._aliases)
        return tokenizers.Tokenizer.from_str(json.dumps(settings))


def _any_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts` at a place; cheap where none can start."""
    longest_first = sorted(texts, key=len, reverse=True)
    if not longest_first:
        return "(?!)"
    starts = "".join({re.escape(text[0]) for text in longest_first})
    return f"(?=[{starts}])(?:{'|'.join(map(re.escape, longest_first))})"


def _respell_model(model: dict[str, Any], aliases: Mapping[str, str]) -> None:
    """Takes the control tokens out of plain text's reach in a tokenizer.json model section."""
    if model.get("unk_token") in aliases:
        model["unk_token"] = aliases[model["unk_token"]]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {aliases.get(text, text): token_id for text, token_id in vocab.items()}
    else:
        model["vocab"] = [[aliases.get(text, text), score] for text, score in vocab]
    if "merges" in model:
        pairs = (
            merge if isinstance(merge, list) else merge.split(" ", 1) for merge in model["merges"]
        )
        model["merges"] = [
            pair for pair in pairs if aliases.keys().isdisjoint((*pair, "".join(pair)))
        ]
