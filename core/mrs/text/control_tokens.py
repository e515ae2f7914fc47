"""Prevents users from injecting control tokens by typing their spelling.

Control tokens in the contents of messages are marked as text before a template renders them. The
template's own control tokens then get aliases of private characters, and a copy of the tokenizer
that knows the control tokens by these aliases only encodes the whole prompt in one call. The rest
of the encoding (normalizer, prefix spaces, words that span template and content) is unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mrs.process.memory_room import MemoryRoom
from mrs.text.backend import parse_backend, require_characters
from mrs.text.long_texts import encode_ids

if TYPE_CHECKING:
    import tokenizers

# Noncharacters: Unicode reserves these code points for internal use by programs.
TEXT_START, TEXT_END, _ALIAS_START, _ALIAS_END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_RESERVED = dict.fromkeys(map(ord, (TEXT_START, TEXT_END, _ALIAS_START, _ALIAS_END)))


def mark_as_text(text: str) -> str:
    """`text`, marked so that `ControlTokens.encode` finds no control token in it."""
    return f"{TEXT_START}{text}{TEXT_END}"


class ControlTokens:
    """Marks control tokens in contents as text, and encodes prompts with such marks."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        control_ids: Mapping[str, int],
        room: MemoryRoom | None = None,
    ) -> None:
        self._backend = backend
        self._room = room
        self._control_ids = control_ids
        any_control = _any_of(control_ids)
        self._control = re.compile(any_control)
        # A template may remove one mark of a pair: the remaining one still marks the token as text.
        self._marked = re.compile(
            f"{TEXT_START}({any_control})|({any_control}){TEXT_END}|[{TEXT_START}{TEXT_END}]"
        )

    def spells_control(self, text: str) -> bool:
        return self._control.search(text) is not None

    def protect(self, content: str) -> str:
        """Marks control tokens in `content` as text. Raises UsageError for a lone surrogate."""
        require_characters(content)
        return self._control.sub(lambda m: mark_as_text(m[0]), content.translate(_RESERVED))

    def encode(self, text: str) -> list[int]:
        if TEXT_START not in text and TEXT_END not in text:
            return encode_ids(self._backend, text, add_special_tokens=False, room=self._room)
        pieces = self._marked.split(text)
        for start in range(0, len(pieces), 3):
            pieces[start] = self._control.sub(lambda m: self._aliases[m[0]], pieces[start])
        aliased = "".join(piece for piece in pieces if piece)
        ids = encode_ids(self._aliased_backend, aliased, add_special_tokens=False, room=self._room)
        return [self._original_ids.get(token_id, token_id) for token_id in ids]

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return {text: f"{_ALIAS_START}{i}{_ALIAS_END}" for text, i in self._control_ids.items()}

    @cached_property
    def _original_ids(self) -> Mapping[int, int]:
        alias_ids = map(self._aliased_backend.token_to_id, self._aliases.values())
        originals = map(self._control_ids.__getitem__, self._aliases)
        return {
            alias: i for alias, i in zip(alias_ids, originals, strict=True) if alias is not None
        }

    @cached_property
    def _aliased_backend(self) -> tokenizers.Tokenizer:
        settings = json.loads(self._backend.to_str())
        for token in settings["added_tokens"]:
            token["content"] = self._aliases.get(token["content"], token["content"])
        settings["post_processor"] = None
        _alias_model(settings["model"], self._aliases)
        aliased = parse_backend(json.dumps(settings))
        aliased.encode_special_tokens = self._backend.encode_special_tokens
        return aliased


def _any_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts` at a position; fast where none of them can start."""
    longest_first = sorted(texts, key=len, reverse=True)
    if not longest_first:
        return "(?!)"
    starts = "".join({re.escape(text[0]) for text in longest_first})
    return f"(?=[{starts}])(?:{'|'.join(map(re.escape, longest_first))})"


def _alias_model(model: dict[str, Any], aliases: Mapping[str, str]) -> None:
    """Renames the control tokens in a tokenizer.json model section, so that text never matches."""
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
