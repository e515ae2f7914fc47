"""What the JSON files beside a tokenizer say of its tokens, as transformers reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mrs.errors import NotReadable
from mrs.text.backend import backend_errors
from mrs.text.json_files import parse_object, read_object

if TYPE_CHECKING:
    import tokenizers

_logger = logging.getLogger(__name__)
_CONFIG = "tokenizer_config.json"
_DECODER = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
#: Classes that build their rules from settings, whatever tokenizer.json says.
_CLEANS = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_CLEANING = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_SPACES = ("GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "RobertaTokenizer")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")


def special_token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens in a tokenizer_config.json by role: `bos_token`, `image_token` and so on.

    Each is a text or an object. The roles are variables of the chat template.
    """
    named = {role: value for role, value in config.items() if role.endswith("_token")}
    extra = config.get(_EXTRA[0])
    if isinstance(extra, dict):
        named |= extra
    texts = {role: _content(value) for role, value in named.items()}
    return {role: text for role, text in texts.items() if text}


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings: `config` of tokenizer_config.json with what older files have of their own."""

    config: Mapping[str, Any]
    model_config: Mapping[str, Any]

    def with_roles(self, roles: Mapping[str, str]) -> TokenizerSettings:
        """With special tokens for the roles that the settings do not mention."""
        return replace(self, config={**roles, **self.config})

    @cached_property
    def named(self) -> Mapping[str, str]:
        """Special tokens by role."""
        return special_token_texts(self.config)

    @property
    def class_name(self) -> str | None:
        """The Python class of the tokenizer; with its module if it is code beside the model."""
        custom = self.config.get("auto_map")
        if isinstance(custom, dict):
            custom = custom.get("AutoTokenizer")
        if isinstance(custom, list):
            custom = next(filter(None, custom), None)
        if isinstance(custom, str):
            return custom.rpartition("--")[2].removesuffix("Fast")
        name = self.config.get("tokenizer_class") or self.model_config.get("tokenizer_class")
        return name.removesuffix("Fast") if isinstance(name, str) else None

    @property
    def model_type(self) -> str:
        return str(self.model_config.get("model_type", ""))

    @property
    def rows(self) -> int | None:
        """How many tokens the model has embeddings of; None if that is not known."""
        text = self.model_config.get("text_config")
        for config in (self.model_config, text if isinstance(text, Mapping) else {}):
            if type(rows := config.get("vocab_size")) is int:
                return rows
        return None

    def flag(self, name: str) -> bool | None:
        value = self.config.get(name)
        return value if isinstance(value, bool) else None

    @cached_property
    def added_texts(self) -> Mapping[int, str]:
        """The texts that the settings give to token ids."""
        return {token_id: str(fields["content"]) for token_id, fields in self._added()}

    def _added(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        configured = self.config.get(_DECODER)
        if not isinstance(configured, dict):
            return
        for token_id, fields in sorted(configured.items(), key=lambda item: item[0].zfill(12)):
            if not isinstance(fields, dict) or not _content(fields) or not token_id.isdecimal():
                raise NotReadable(f"added token {token_id} has no content", where=_CONFIG)
            yield int(token_id), fields

    def _listed(self) -> Iterator[Any]:
        """The special tokens without a role."""
        for name in _EXTRA:
            if isinstance(listed := self.config.get(name), list) and listed:
                yield from listed
                return

    def add_tokens(self, backend: tokenizers.Tokenizer) -> None:
        """Adds the tokens that the settings have and the tokenizer lacks, or has otherwise.

        A new token gets the next id, as in transformers. One for which the model has no row stays
        text, with a warning.
        """
        from tokenizers import AddedToken

        known = {i: repr(token) for i, token in backend.get_added_tokens_decoder().items()}
        for token_id, fields in self._added():
            flags = {name: bool(fields[name]) for name in _FLAGS if name in fields}
            if fields["content"] in self.named.values():
                flags["special"] = True
            token = AddedToken(fields["content"], **flags)
            if known.get(token_id) != repr(token):
                self._add(backend, token, token_id)
        contents = {token.content for token in backend.get_added_tokens_decoder().values()}
        for value in (*self._special_values(), *self._listed()):
            if (text := _content(value)) and text not in contents:
                fields = value if isinstance(value, dict) else {}
                flags = {name: bool(fields[name]) for name in _FLAGS[:4] if name in fields}
                self._add(backend, AddedToken(text, special=True, **flags), None)

    def _special_values(self) -> Sequence[Any]:
        extra = self.config.get(_EXTRA[0])
        return [
            (extra if isinstance(extra, dict) and role in extra else self.config).get(role)
            for role in self.named
        ]

    def _add(
        self, backend: tokenizers.Tokenizer, token: tokenizers.AddedToken, declared: int | None
    ) -> None:
        token_id = backend.token_to_id(token.content)
        if token_id is None:
            token_id = _next_id(backend)
            if self.rows is not None and token_id >= self.rows:
                _logger.warning(
                    "the token %r of the settings stays text: the model has no row %d (%d rows)",
                    token.content,
                    token_id,
                    self.rows,
                )
                return
        if declared is not None and declared != token_id:
            _logger.warning(
                "%s: the token %r has the id %d, not %d", _CONFIG, token.content, token_id, declared
            )
        with backend_errors():
            backend.add_tokens([token])


def _next_id(backend: tokenizers.Tokenizer) -> int:
    added = backend.get_added_tokens_decoder()
    return max(backend.get_vocab_size(with_added_tokens=False), max(added, default=-1) + 1)


def _content(value: Any) -> str:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else ""


def read_settings(read_text: Callable[[str], str | None]) -> TokenizerSettings:
    """The settings of a model's tokenizer; `read_text` returns the text of a file, or None.

    Older files count where tokenizer_config.json does not list the added tokens. Raises
    NotReadable for malformed files.
    """
    config = read_object(read_text, _CONFIG)
    if _DECODER not in config:
        config |= read_object(read_text, "special_tokens_map.json")
        config[_DECODER] = _decoder(read_object(read_text, "added_tokens.json"), config)
    return TokenizerSettings(config, read_object(read_text, "config.json"))


def _decoder(ids: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """added_tokens.json, ids by text, in the form of tokenizer_config.json."""
    special = {*special_token_texts(config).values()}
    for name in _EXTRA:
        if isinstance(listed := config.get(name), list):
            special |= {_content(value) for value in listed}
    if not all(type(token_id) is int for token_id in ids.values()):
        raise NotReadable("not ids by text", where="added_tokens.json")
    return {
        str(token_id): {
            "content": text,
            "special": text in special,
            "normalized": text not in special,
        }
        for text, token_id in ids.items()
    }


def rebuilt(text: str, settings: TokenizerSettings) -> str:
    """A tokenizer.json with the rules that the settings of its class replace.

    BERT's class cleans texts, and the byte-level classes put a space before them, as
    tokenizer_config.json says.
    """
    short = (settings.class_name or "").rpartition(".")[2]
    changed: dict[str, Any] = {}
    if short in _CLEANS:
        changed = {
            ours: settings.config[key] for key, ours in _CLEANING.items() if key in settings.config
        }
        section, kind = "normalizer", "BertNormalizer"
    elif short in _SPACES and (before := settings.flag("add_prefix_space")) is not None:
        changed = {"add_prefix_space": before}
        section, kind = "pre_tokenizer", "ByteLevel"
    if not changed:
        return text
    file = parse_object(text, "tokenizer.json")
    for step in _steps(file.get(section)):
        if step.get("type") == kind:
            step |= changed
    return json.dumps(file)


def _steps(section: Any) -> Iterator[dict[str, Any]]:
    """The steps of a section, those of sequences too."""
    if isinstance(section, dict):
        yield section
        for steps in section.values():
            for step in steps if isinstance(steps, list) else ():
                yield from _steps(step)
