"""Prevents users from injecting control tokens by typing their spelling.

Control tokens in the contents of messages are marked as text before a template renders them. The
template's own control tokens then get aliases of private characters, and a copy of the tokenizer
that knows the control tokens by these aliases only encodes the whole prompt in one call. The rest
of the encoding (normalizer, prefix spaces, words that span template and content) is unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mrs.process.memory_room import MemoryRoom
from mrs.text.backend import parse_backend, require_characters
from mrs.text.long_texts import encode_ids
from mrs.text.patterns import any_of, matches, replaced

if TYPE_CHECKING:
    import tokenizers

# Noncharacters: Unicode reserves these code points for internal use by programs.
TEXT_START, TEXT_END, _ALIAS_START, _ALIAS_END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_RESERVED = (TEXT_START, TEXT_END, _ALIAS_START, _ALIAS_END)


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
        any_control = any_of(control_ids)
        #: The most characters of a control token, and of one with a mark.
        self._longest = max(map(len, control_ids), default=0) + 1
        self._control = re.compile(any_control)
        # A template may remove one mark of a pair: the remaining one still marks the token as text.
        self._marked = re.compile(
            f"{TEXT_START}({any_control})|({any_control}){TEXT_END}|[{TEXT_START}{TEXT_END}]"
        )

    def spells_control(self, text: str) -> bool:
        return any(matches(self._control, text, self._longest))

    def protect(self, content: str) -> str:
        """Marks control tokens in `content` as text. Raises UsageError for a lone surrogate."""
        require_characters(content)
        for reserved in _RESERVED:
            content = content.replace(reserved, "")
        return replaced(self._control, lambda m: mark_as_text(m[0]), content, self._longest)

    def encode(self, text: str) -> list[int]:
        if TEXT_START not in text and TEXT_END not in text:
            return encode_ids(self._backend, text, add_special_tokens=False, room=self._room)
        pieces, end = list[str](), 0
        for match in matches(self._marked, text, self._longest):
            pieces += self._with_aliases(text[end : match.start()]), match[1] or match[2] or ""
            end = match.end()
        aliased = "".join([*pieces, self._with_aliases(text[end:])])
        ids = encode_ids(self._aliased_backend, aliased, add_special_tokens=False, room=self._room)
        return [self._original_ids.get(token_id, token_id) for token_id in ids]

    def _with_aliases(self, text: str) -> str:
        return replaced(self._control, lambda m: self._aliases[m[0]], text, self._longest)

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
