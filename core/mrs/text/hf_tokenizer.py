"""Reads a tokenizer from tokenizer.json, or from another file, and the settings files beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from mrs.errors import NotReadable
from mrs.source.folder import decode_text
from mrs.source.tokenizer_files import TOKENIZER_JSON, VOCABULARY_FILES
from mrs.text.backend import parse_backend
from mrs.text.build_backend import build_backend, put_around
from mrs.text.tokenizer import Tokenizer
from mrs.text.tokenizer_settings import TokenizerSettings, read_settings, rebuilt
from mrs.text.vocabulary import Around, Described
from mrs.text.vocabulary_files.read_file import (
    ReadBytes,
    is_tokenizer_json,
    read_vocabulary_file,
)

_logger = logging.getLogger(__name__)


def read_hf_tokenizer(
    read_text: Callable[[str], str | None],
    read_bytes: ReadBytes | None = None,
    label_of: Callable[[str], str] = str,
) -> Tokenizer:
    """The tokenizer of a model; `read_text` returns the text of a file by name, or None, and
    `read_bytes` its bytes. `label_of` is what errors call a file.

    The first of `VOCABULARY_FILES` that the model has counts. tokenizer_config.json may add tokens,
    change how they match, name the special tokens, and say whether a raw prompt starts with bos.
    Raises NotReadable without such a file or if a file is malformed, and Unsupported if nothing
    says how texts become words.
    """
    if read_bytes is None:
        read_bytes = _bytes_of(read_text)
    name, data = find_vocabulary(read_bytes)
    name, settings = label_of(name), read_settings(read_text)
    if is_tokenizer_json(data):
        backend = parse_backend(rebuilt(decode_text(data, name, ""), settings), where=name)
        backend.no_truncation()
        backend.no_padding()
        settings.add_tokens(backend)
        add_bos, repeated = settings.flag("add_bos_token"), None
    else:
        described = read_vocabulary_file(name, data, read_bytes, settings)
        settings = settings.with_roles(described.special_tokens)
        backend = build_backend(described)
        settings.add_tokens(backend)
        put_around(backend, described.around or _around(described, settings), where=name)
        add_bos, repeated = None, described.vocabulary.repeated
    backend.encode_special_tokens = settings.flag("split_special_tokens") is True
    listed = settings.config.get("chat_control_tokens")
    tokenizer = Tokenizer(
        backend,
        special_tokens=settings.named,
        add_bos=add_bos,
        repeated=repeated,
        protected=map(str, listed) if isinstance(listed, list) else (),
    )
    for remark in _remarks(tokenizer, settings):
        _logger.warning("tokenizer_config.json sets %s", remark)
    return tokenizer


def _remarks(tokenizer: Tokenizer, settings: TokenizerSettings) -> Iterator[str]:
    """Settings that do something unexpected, or nothing."""
    if settings.flag("split_special_tokens"):
        yield (
            "split_special_tokens: control tokens are encoded as text, those of the chat template "
            "as well"
        )
    if settings.flag("add_eos_token") and tokenizer.encode_prompt("")[-1:] != [tokenizer.eos_id]:
        yield "add_eos_token, but the rules of the tokenizer add none: no eos token ends a prompt"
    if [*(settings.config.get("fast_tokenizer_files") or [TOKENIZER_JSON])] != [TOKENIZER_JSON]:
        yield "fast_tokenizer_files: files for other versions than tokenizer.json are not read"
    is_llama = (settings.class_name or "").endswith("LlamaTokenizer")
    spaced = settings.flag("add_prefix_space")
    if is_llama and spaced is False and tokenizer.strips_leading_space:
        yield "add_prefix_space to false, but tokenizer.json adds a space before texts: it counts"
    if settings.flag("clean_up_tokenization_spaces") and tokenizer.is_unigram:
        yield "clean_up_tokenization_spaces: no spaces are removed from replies"


def find_vocabulary(read_bytes: ReadBytes) -> tuple[str, bytes]:
    """Name and bytes of the file that has the tokenizer. Raises NotReadable if there is none."""
    for name in VOCABULARY_FILES:
        if (data := read_bytes(name)) is not None:
            return name, data
    raise NotReadable(
        f"the model has no tokenizer.json, nor {', '.join(VOCABULARY_FILES[1:])}",
        hint="give one with -t, or choose a model that has one",
    )


def _bytes_of(read_text: Callable[[str], str | None]) -> ReadBytes:
    def read(name: str) -> bytes | None:
        text = read_text(name)
        return None if text is None else text.encode()

    return read


def _around(described: Described, settings: TokenizerSettings) -> Around:
    """The bos and eos tokens, where the settings or else the class put them."""
    bos, eos = settings.named.get("bos_token"), settings.named.get("eos_token")
    add_bos = settings.flag("add_bos_token")
    has_bos = described.add_bos if add_bos is None else add_bos
    first = [bos] if has_bos and bos is not None else []
    last = [eos] if settings.flag("add_eos_token") and eos is not None else []
    second = [f"{token}:1" for token in first], [f"{token}:1" for token in last]
    one = [*first, "$A", *last]
    return Around(one, [*one, *second[0], "$B:1", *second[1]])
