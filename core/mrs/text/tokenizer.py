"""Text to token ids and back, with a person's text kept apart from a template's control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from mrs.errors import Unsupported
from mrs.text.guard import ControlGuard

if TYPE_CHECKING:
    import tokenizers

# Tokens that end a turn in one of the published chat formats.
END_OF_TURN = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|return|>"),
        *("<|call|>", "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<|EOT|>", "<EOT>"),
        *("<|END_OF_TURN_TOKEN|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    )
)
_DECODER_HINT = "byte-level and SentencePiece tokenizers are supported"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A `tokenizers.Tokenizer` with its special tokens.

    `special_tokens` maps roles as tokenizer_config.json names them (`bos_token`, `eos_token`, …)
    to token texts. `add_bos` says whether a bare prompt starts with the bos token; None leaves
    that to the backend's post-processor. `end_ids` are ids that end a reply, besides the eos token
    and the known end-of-turn tokens of the vocabulary. Of `reserved`, added tokens are control
    tokens whether they say so or not.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        add_bos: bool | None = None,
        end_ids: Iterable[int] = (),
        reserved: Iterable[str] = (),
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self._add_bos = add_bos
        self._end_ids = frozenset(end_ids)
        self._reserved = END_OF_TURN.union(reserved)
        self._pieces: dict[int, bytes] = {}
        self._decoder = _DecoderKind(backend)

    def reserving(self, texts: Iterable[str]) -> Tokenizer:
        """This tokenizer with more control tokens: those of `texts` that are added tokens."""
        return Tokenizer(
            self.backend,
            special_tokens=self.special_tokens,
            add_bos=self._add_bos,
            end_ids=self._end_ids,
            reserved=self._reserved.union(texts),
        )

    @property
    def vocab_size(self) -> int:
        """How many ids have a token; a model's embedding may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def text_of(self, token_id: int | None) -> str | None:
        """How the vocabulary spells a token; None for an id without one."""
        if token_id is None or token_id < 0:
            return None
        text: str | None = self.backend.id_to_token(token_id)
        return text

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
        """Added tokens, control tokens or not, by their text."""
        return {str(t.content): i for i, t in self.backend.get_added_tokens_decoder().items()}

    @cached_property
    def control_ids(self) -> Mapping[str, int]:
        """The tokens that only a template may write, by their text."""
        added = self.backend.get_added_tokens_decoder()
        return {t.content: i for i, t in added.items() if t.special or t.content in self._reserved}

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
        """Whether replies come in channels, where `<|end|>` ends a part and not the reply."""
        return {"<|channel|>", "<|message|>", "<|return|>"} <= self.added_ids.keys()

    @cached_property
    def _guard(self) -> ControlGuard:
        return ControlGuard(self.backend, self.control_ids)

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Ids of `text`, nothing added; control tokens are found in it only if `allow_special`."""
        if allow_special or not self._guard.spells_control(text):
            return list(self.backend.encode(text, add_special_tokens=False).ids)
        return self.encode_rendered(self.protect(text))

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a whole prompt that a person wrote, control tokens and all, after the bos token
        where the tokenizer adds one."""
        if self._add_bos is None:
            return list(self.backend.encode(text, add_special_tokens=True).ids)
        ids = self.encode(text, allow_special=True)
        if self._add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def protect(self, content: str) -> str:
        """`content` with every control token that it spells marked as text for `encode_rendered`.

        The result goes through a template as if it were `content`. A few code points that Unicode
        reserves for such use inside a program are dropped.
        """
        return self._guard.protect(content)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered template whose contents went through `protect`."""
        return self._guard.encode(text)

    def decode(self, ids: Iterable[int], *, show_control: bool = False) -> str:
        """The text of `ids`, as `StreamDecoder` gives it piece by piece.

        Control tokens are left out unless `show_control`.
        """
        controls = self._control_pieces if show_control else {}
        pieces = (controls.get(token_id) or self.piece(token_id) for token_id in ids)
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    @property
    def strips_leading_space(self) -> bool:
        """Whether the first space of a text is the tokenizer's own and not shown."""
        return self._decoder.strips_leading_space

    def piece(self, token_id: int) -> bytes:
        """The bytes that a token stands for: none for control tokens and ids without a token."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._make_piece(token_id)
        return piece

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
    """How the backend's decoder turns one vocabulary entry into bytes, found by trying it."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        if backend.decoder is None:
            raise Unsupported("a tokenizer without a decoder", hint=_DECODER_HINT)
        decode = backend.decoder.decode
        self._byte_level = decode(["a", "Ġb"]) == "a b"
        if not self._byte_level and decode(["a", "▁b"]) != "a b":
            raise Unsupported(f"the tokenizer's decoder {backend.decoder}", hint=_DECODER_HINT)
        self._byte_fallback = not self._byte_level and decode(["a", "<0x41>"]) == "aA"
        self.strips_leading_space = not self._byte_level and decode(["▁a"]) == "a"
        self._byte_of = _byte_of_character() if self._byte_level else {}

    def bytes_of(self, text: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(self._byte_of[character] for character in text)
            except KeyError:
                return text.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.replace("▁", " ").encode()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }
