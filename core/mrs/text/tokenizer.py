"""Text to token ids and back; control tokens in a user's text remain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from mrs.errors import Unsupported
from mrs.process.memory_room import MemoryRoom
from mrs.text.backend import backend_errors, encode, join_pieces
from mrs.text.control_tokens import ControlTokens
from mrs.text.long_texts import encode_ids

if TYPE_CHECKING:
    import tokenizers

# Tokens that end a message in the published chat formats.
END_OF_TURN = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|return|>"),
        *("<|call|>", "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<|EOT|>", "<EOT>"),
        *("<|END_OF_TURN_TOKEN|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    )
)
_DECODER_HINT = "byte-level, SentencePiece and WordPiece tokenizers are supported"
#: Precedes a text that follows another, and is no part of its first token.
_BEFORE = "\n"
#: Before the pieces that continue a word in WordPiece.
_CONTINUES = "##"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TypedIds(NamedTuple):
    """Token ids, and to which of two texts each belongs (0 or 1)."""

    ids: list[int]
    types: list[int]


class Tokenizer:
    """A `tokenizers.Tokenizer` with its special tokens.

    `special_tokens` maps roles of tokenizer_config.json (`bos_token`, `eos_token`, …) to token
    texts. `add_bos` is whether a raw prompt starts with the bos token; None leaves that to the
    backend's post-processor. `end_ids` are ids that end a reply, in addition to the eos token and
    the vocabulary's end-of-turn tokens. Added tokens in `reserved` are control tokens even if the
    tokenizer does not declare them special. `repeated` are texts by id of tokens whose text another
    token has: the library knows only one of them. Added tokens in `protected` are text where a user
    writes them, as control tokens are, but are shown in replies. Long texts share `room` while they
    are encoded.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        add_bos: bool | None = None,
        end_ids: Iterable[int] = (),
        reserved: Iterable[str] = (),
        repeated: Mapping[int, str] | None = None,
        protected: Iterable[str] = (),
        room: MemoryRoom | None = None,
    ) -> None:
        self.backend = backend
        self._room = room
        self.special_tokens = dict(special_tokens)
        self._add_bos = add_bos
        self._end_ids = frozenset(end_ids)
        self._reserved = END_OF_TURN.union(reserved)
        self._repeated = repeated or {}
        self._protected = frozenset(protected)
        self._pieces: dict[int, bytes] = {}
        self._decoder = _DecoderKind(backend)

    def reserving(self, texts: Iterable[str], room: MemoryRoom | None = None) -> Tokenizer:
        """This tokenizer with more control tokens, the added tokens among `texts`, and a room."""
        return Tokenizer(
            self.backend,
            special_tokens=self.special_tokens,
            add_bos=self._add_bos,
            end_ids=self._end_ids,
            reserved=self._reserved.union(texts),
            repeated=self._repeated,
            protected=self._protected,
            room=room or self._room,
        )

    def text_of(self, token_id: int | None) -> str | None:
        """The text of a token in the vocabulary; None for an id without a token."""
        if token_id is None:
            return None
        try:
            text: str | None = self.backend.id_to_token(token_id)
        except OverflowError:  # the library's ids are unsigned, of 32 bits
            return None
        return self._repeated.get(token_id) if text is None else text

    @property
    def bos_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        return self._special_id("eos_token")

    def _special_id(self, role: str) -> int | None:
        text = self.special_tokens.get(role)
        return None if text is None else self.backend.token_to_id(text)

    @cached_property
    def added_ids(self) -> Mapping[str, int]:
        """Ids of all added tokens by text."""
        return {str(t.content): i for i, t in self.backend.get_added_tokens_decoder().items()}

    @cached_property
    def control_ids(self) -> dict[str, int]:
        """Ids of the tokens that only a template may write, by text."""
        added = self.backend.get_added_tokens_decoder()
        return {t.content: i for i, t in added.items() if t.special or t.content in self._reserved}

    @cached_property
    def control_id_set(self) -> frozenset[int]:
        """The values of `control_ids`."""
        return frozenset(self.control_ids.values())

    @cached_property
    def _control_pieces(self) -> Mapping[int, bytes]:
        return {token_id: text.encode() for text, token_id in self.control_ids.items()}

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a reply."""
        named = {text: i for text, i in self.added_ids.items() if text in END_OF_TURN}
        if self.is_harmony:
            named.pop("<|end|>", None)
        eos = () if self.eos_id is None else (self.eos_id,)
        return self._end_ids | frozenset(named.values()) | frozenset(eos)

    @property
    def is_harmony(self) -> bool:
        """Whether replies consist of channels, so that `<|end|>` ends a message, not the reply."""
        return {"<|channel|>", "<|message|>", "<|return|>"} <= self.added_ids.keys()

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        """The control tokens that texts could spell: none that the backend takes for text."""
        special = set[int]()
        if self.backend.encode_special_tokens:
            added = self.backend.get_added_tokens_decoder()
            special = {token_id for token_id, token in added.items() if token.special}
        known = {t: i for t, i in self.added_ids.items() if t in self._protected}
        controls = {t: i for t, i in (self.control_ids | known).items() if i not in special}
        return ControlTokens(self.backend, controls, self._room)

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Ids of `text` without bos; control tokens match only if `allow_special`."""
        if allow_special or not self._control_tokens.spells_control(text):
            return encode_ids(self.backend, text, add_special_tokens=False, room=self._room)
        return self.encode_rendered(self.protect(text))

    def encode_next(self, text: str, *, allow_special: bool) -> list[int]:
        """Ids of a text that follows other text: without the space that some tokenizers add."""
        before = self.encode(_BEFORE, allow_special=False)
        ids = self.encode(_BEFORE + text, allow_special=allow_special)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return self.encode(text, allow_special=allow_special)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: control tokens match, and bos is added if the tokenizer does so."""
        if self._add_bos is None:
            return encode_ids(self.backend, text, add_special_tokens=True, room=self._room)
        ids = self.encode(text, allow_special=True)
        if self._add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def encode_whole(
        self, text: str, second: str | None = None, *, most_tokens: int | None = None
    ) -> TypedIds:
        """Ids of a text, or of two, with all tokens that the tokenizer puts around them.

        With `most_tokens`, the end of the (second) text is left out if there are more.
        """
        texts = [text] if second is None else [text, second]
        parts = [
            encode(self.backend, each, add_special_tokens=False, room=self._room) for each in texts
        ]
        bos = self._missing_bos
        if most_tokens is not None:
            around = self.backend.num_special_tokens_to_add(second is not None) + len(bos)
            before = sum(len(part) for part in parts[:-1])
            parts[-1].truncate(max(most_tokens - around - before, 0))
        with backend_errors():
            whole = self.backend.post_process(parts[0], None if second is None else parts[1])
        return TypedIds([*bos, *whole.ids], [*(0 for _ in bos), *whole.type_ids])

    @cached_property
    def _missing_bos(self) -> list[int]:
        """The bos token, if a text begins with it and the backend does not add it."""
        if not self._add_bos or self.bos_id is None:
            return []
        added = encode(self.backend, "", add_special_tokens=True).ids
        return [] if added[:1] == [self.bos_id] else [self.bos_id]

    def protect(self, content: str) -> str:
        """`content` with its control tokens marked as text for `encode_rendered`.

        Templates treat the result like `content`. The noncharacters that serve as marks are
        dropped from `content`.
        """
        return self._control_tokens.protect(content)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered template whose contents passed through `protect`."""
        return self._control_tokens.encode(text)

    def decode(self, ids: Iterable[int], *, show_control: bool = False) -> str:
        """The text of `ids`, the same as `StreamDecoder` returns in pieces.

        Control tokens are omitted unless `show_control`.
        """
        controls = self._control_pieces if show_control else {}
        pieces = (controls.get(token_id) or self.piece(token_id) for token_id in ids)
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    @cached_property
    def longest_bytes(self) -> int:
        """The bytes of the longest token."""
        texts = self.backend.get_vocab(with_added_tokens=True)
        return max((len(self._decoder.bytes_of(text)) for text in texts), default=1)

    @property
    def is_unigram(self) -> bool:
        return type(self.backend.model).__name__ == "Unigram"

    @property
    def strips_leading_space(self) -> bool:
        """Whether the tokenizer adds a space before a text, which decoding removes."""
        return self._decoder.strips_leading_space

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token: none for control tokens and ids without a token."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._make_piece(token_id)
        return piece

    def label(self, token_id: int) -> bytes:
        """What names a token: its bytes, the text of a control token, or else its id."""
        named = self._control_pieces.get(token_id) or self.piece(token_id)
        return named or f"token_id:{token_id}".encode()

    def _make_piece(self, token_id: int) -> bytes:
        text = self.text_of(token_id)
        if text is None:
            return b""
        if text in self.control_ids:
            return b""
        data = self._decoder.bytes_of(text)
        if text in self.added_ids and not _is_text(data):
            # An added token is plain text, even if its letters are also GPT-2's spelling of bytes.
            return text.encode()
        return data


class _DecoderKind:
    """How the backend's decoder converts a vocabulary entry to bytes; found by decoding samples."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        if backend.decoder is None:
            raise Unsupported("a tokenizer without a decoder", hint=_DECODER_HINT)
        decode = partial(join_pieces, backend)
        self._byte_level = decode(["a", "Ġb"]) == "a b"
        self._word_pieces = decode(["a", f"{_CONTINUES}b", "c"]) == "ab c"
        is_known = self._byte_level or self._word_pieces
        if not is_known and decode(["a", "▁b"]) != "a b":
            raise Unsupported(f"the tokenizer's decoder {backend.decoder}", hint=_DECODER_HINT)
        self._byte_fallback = not self._byte_level and decode(["a", "<0x41>"]) == "aA"
        self.strips_leading_space = self._word_pieces or (
            not self._byte_level and decode(["▁a"]) == "a"
        )
        self._byte_of = byte_of_character() if self._byte_level else {}

    def bytes_of(self, text: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(self._byte_of[character] for character in text)
            except KeyError:
                return text.encode()
        if self._word_pieces:
            is_inside = text.startswith(_CONTINUES)
            return (text.removeprefix(_CONTINUES) if is_inside else f" {text}").encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.replace("▁", " ").encode()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }
