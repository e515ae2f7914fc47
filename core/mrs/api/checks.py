"""What each field of a request, a model or a runner may be: one table, one way to say no."""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Rational, Real
from pathlib import Path
from typing import Any, Protocol

from mrs.block_sizes import BLOCK_SIZES
from mrs.errors import Unsupported, UsageError
from mrs.request import CACHE_TYPES

_LARGEST = sys.float_info.max
#: Who may speak in a conversation.
ROLES = ("system", "developer", "user", "assistant", "tool")


class Kind(Protocol):
    """What a field may be; `wording` says it to a person."""

    @property
    def wording(self) -> str: ...
    def accepts(self, value: Any) -> bool: ...


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`; `above` leaves `low` itself out."""

    low: float = 0
    high: float = math.inf
    above: bool = False
    whole: bool = False

    @property
    def wording(self) -> str:
        start = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        high = str(self.high) if self.whole else f"{self.high:g}"
        end = f" to {high}" if self.high < math.inf else "" if self.above else " up"
        return f"{'a whole number' if self.whole else 'a number'} {start}{end}"

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number: Any = value if isinstance(value, Rational) else float(value)
        if not -_LARGEST <= number <= _LARGEST or (self.above and number == self.low):
            return False
        return bool(self.low <= number <= self.high)


@dataclass(frozen=True)
class Allowed:
    """What a function accepts."""

    wording: str
    accepts: Callable[[Any], bool]


def one_of(*values: object) -> Allowed:
    """One of some texts or constants."""
    names = [each if isinstance(each, str) else str(each) for each in values]
    return Allowed(f"{', '.join(names[:-1])} or {names[-1]}", lambda value: value in values)


def of_type(wording: str, *types: type) -> Allowed:
    return Allowed(wording, lambda value: isinstance(value, types))


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(accepts, value))


def _is_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _COUNT.accepts(token) and _BIAS.accepts(bias) for token, bias in value.items()
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_COUNT, _POSITIVE = Number(whole=True), Number(1, whole=True)
_BIAS = Number(-1e9, 1e9)
_FLAG = of_type("True or False", bool)
_TEXT, _PATH = of_type("a text", str), of_type("a path", str, Path)
_NAME = Allowed(
    "a name or a path that is not empty", lambda value: _PATH.accepts(value) and bool(str(value))
)
_TEXTS = Allowed(
    "a text or a list of texts", lambda value: _is_text(value) or _is_list(value, _is_text)
)
_PENALTY = Number(-2, 2)
_FORMAT = Allowed(
    "such as 4bit, q4k or 8", lambda value: _is_text(value) or _POSITIVE.accepts(value)
)
_LAYERS = Allowed(
    'such as ["0:16", "1:16"]', lambda value: _TEXTS.accepts(value) or _COUNT.accepts(value)
)

#: By name of the field. What is not in it is nothing that can be asked for.
FIELDS: Mapping[str, Kind] = {
    # a request
    "messages": Allowed(
        'a text, or a list of {"role": …, "content": …}',
        lambda value: _is_text(value) or _is_list(value, lambda m: isinstance(m, Mapping)),
    ),
    "prompt": _TEXT,
    "model": _TEXT,
    "max_tokens": _POSITIVE,
    "n_choices": _POSITIVE,
    "temperature": Number(),
    "top_k": _COUNT,
    "top_p": Number(0, 1),
    "min_p": Number(0, 1),
    "repetition_penalty": Number(above=True),
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "stop_seqs": _TEXTS,
    "logit_bias": Allowed(f"token ids, each with {_BIAS.wording}", _is_bias),
    "logprobs": _FLAG,
    "top_logprobs": _COUNT,
    "dry_multiplier": Number(),
    "dry_base": Number(1),
    "dry_allowed_length": _POSITIVE,
    "dry_sequence_breakers": _TEXTS,
    "stream": _FLAG,
    "echo_prompt": _FLAG,
    "enable_thinking": _FLAG,
    "reasoning_effort": one_of("off", "none"),
    "truncate_sequence": _FLAG,
    "ignore_eos": _FLAG,
    # a model
    "model_id": _NAME,
    "quantized_model_id": _NAME,
    "quantized_filename": _TEXTS,
    "tok_model_id": _NAME,
    "tokenizer_json": _PATH,
    "mmproj_filename": _NAME,
    "hf_cache_path": _PATH,
    "max_edge": _POSITIVE,
    "max_num_images": _POSITIVE,
    "max_image_length": _POSITIVE,
    # a runner
    "device_map": _LAYERS,
    "num_device_layers": _LAYERS,
    "in_situ_quant": _FORMAT,
    "max_seq_len": _POSITIVE,
    "max_batch_size": _POSITIVE,
    "max_seqs": _POSITIVE,
    "prefix_cache_n": _COUNT,
    "prefix_cache_dir": _PATH,
    "prefix_cache_dir_size": Allowed(
        "bytes, or such as 512MiB", lambda value: _is_text(value) or _COUNT.accepts(value)
    ),
    "no_kv_cache": _FLAG,
    "no_paged_attn": _FLAG,
    "paged_attn": _FLAG,
    "pa_ctxt_len": _POSITIVE,
    "pa_gpu_mem_usage": Number(0, 1, above=True),
    "pa_gpu_mem": _POSITIVE,
    "pa_blk_size": one_of(*BLOCK_SIZES),
    "pa_cache_type": one_of(*CACHE_TYPES),
    "seed": Number(0, 2**64 - 1, whole=True),
    "chat_template": _PATH,
    "jinja_explicit": _PATH,
    "token_source": _TEXT,
    "cpu": _FLAG,
    "on_progress": Allowed("a function", callable),
    # a text and its tokens
    "text": _TEXT,
    "tokens": Allowed("a list of token ids", lambda value: _is_list(value, _COUNT.accepts)),
    "add_special_tokens": _FLAG,
    "skip_special_tokens": _FLAG,
}


def check(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Refuse a value that its field cannot have; that of `defaults` is always one.

    Raises UsageError that says what is wanted, Unsupported for a field that nothing is made of.
    """
    for name, value in values.items():
        if defaults is not None and name in defaults and _is_same(value, defaults[name]):
            continue
        if name not in FIELDS:
            raise Unsupported(f"{name} is not supported", hint="leave it out")
        require(name, value, FIELDS[name])


def require(name: str, value: Any, kind: Kind) -> None:
    """UsageError unless a field may be `value`."""
    if not kind.accepts(value):
        raise UsageError(f"{name} is {shown(value)}", hint=f"give {kind.wording}")


def check_fields(instance: Any, other: Mapping[str, Kind]) -> None:
    """`check` the fields of a dataclass, those in `other` by that kind."""
    fields = [each for each in dataclasses.fields(instance) if each.name not in other]
    check(
        {each.name: getattr(instance, each.name) for each in fields},
        {each.name: each.default for each in fields},
    )
    for name, kind in other.items():
        require(name, getattr(instance, name), kind)


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """`check` the arguments that a function was called with, `given` by name."""
    parameters = inspect.signature(function).parameters.values()
    check(given, {each.name: each.default for each in parameters})


def shown(value: Any) -> str:
    """A value as an error quotes it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whatever a caller's object raises; a number of 4300 digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def check_keys(what: str, given: Mapping[Any, Any], known: Iterable[str]) -> None:
    """Unsupported if a mapping says more than is known of it."""
    for key in given:
        if key not in known:
            raise Unsupported(f"{what} has a {shown(key)}", hint="leave it out")


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
