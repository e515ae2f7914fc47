"""The accepted values of every field of a request, a model or a runner: one table."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from mrs.api.field_types import Allowed, FieldType, of_type, one_of, require
from mrs.api.lora_adapter import LoraAdapter
from mrs.errors import Unsupported
from mrs.request import ACTIVATION_BITS, AUDIO_SECONDS, BLOCK_SIZES, CACHE_TYPES, Speculation
from mrs.request.sampling import SETTINGS
from mrs.request.setting_kinds import Number, quoted

#: Roles of messages.
ROLES = ("system", "developer", "user", "assistant", "tool")


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(accepts, value))


def _is_input(value: Any) -> bool:
    """Whether this is a text, token ids, or a list of one of these."""
    if _is_text(value):
        return True
    kinds: list[Callable[[Any], bool]] = [_is_text, _COUNT.accepts, _is_ids]
    return bool(value) and any(_is_list(value, accepts) for accepts in kinds)


def _is_ids(value: Any) -> bool:
    return _is_list(value, _COUNT.accepts)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_tool(value: Any) -> bool:
    try:
        return isinstance(json.loads(value) if _is_text(value) else value, Mapping)
    except (ValueError, RecursionError):
        return False


_COUNT, _POSITIVE = Number(whole=True), Number(1, whole=True)
_SIZE = Allowed(
    "a size in bytes, or such as 512MiB", lambda value: _is_text(value) or _COUNT.accepts(value)
)
_FLAG = of_type("True or False", bool)
_TEXT, _PATH = of_type("a string", str), of_type("a path", str, Path)
_NAME = Allowed(
    "a name or a path, not an empty one", lambda value: _PATH.accepts(value) and bool(str(value))
)
_LIST_OF_TEXTS = Allowed("a list of strings", lambda value: _is_list(value, _is_text))
_NAME_TEXT = Allowed("a name", lambda value: _is_text(value) and bool(value))
_TEXTS = Allowed(
    "a string or a list of strings", lambda value: _is_text(value) or _is_list(value, _is_text)
)
_FORMAT = Allowed(
    "a format such as 4bit, q4k or 8", lambda value: _is_text(value) or _POSITIVE.accepts(value)
)
_LAYERS = Allowed(
    'a layer map such as ["0:16", "1:16"]',
    lambda value: _TEXTS.accepts(value) or _COUNT.accepts(value),
)

_ADAPTERS = Allowed(
    "a list of LoraAdapter(alias, source)",
    lambda value: _is_list(value, lambda each: isinstance(each, LoraAdapter)),
)

#: Settings whose fields have other names in the Python package mistralrs.
FIELD_NAMES = {"stop": "stop_seqs"}
#: The type of every supported field, by its name.
FIELDS: Mapping[str, FieldType] = {
    **{FIELD_NAMES.get(name, name): setting.kind for name, setting in SETTINGS.items()},
    # a request
    "messages": Allowed(
        'a string, or a list of {"role": …, "content": …}',
        lambda value: _is_text(value) or _is_list(value, lambda m: isinstance(m, Mapping)),
    ),
    "prompt": Allowed(
        "a string, or token ids", lambda value: _is_text(value) or (bool(value) and _is_ids(value))
    ),
    "input": Allowed(
        "a string, a list of strings, of token ids, or of lists of token ids", _is_input
    ),
    "prompt_name": _TEXT,
    "query": _TEXT,
    "documents": _LIST_OF_TEXTS,
    "texts": _LIST_OF_TEXTS,
    "text_pair": _TEXT,
    "instruction": _TEXT,
    "dimensions": _POSITIVE,
    "model": _TEXT,
    "n_choices": _POSITIVE,
    "logprobs": _FLAG,
    "top_logprobs": _COUNT,
    "prompt_logprobs": _COUNT,
    "stream": _FLAG,
    "echo_prompt": _FLAG,
    "enable_thinking": _FLAG,
    "truncate_sequence": _FLAG,
    "ignore_eos": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "grammar": Allowed(
        "a string, or an object", lambda value: _is_text(value) or isinstance(value, Mapping)
    ),
    "grammar_type": one_of("regex", "json_schema", "lark", "gbnf", "llguidance"),
    "tool_schemas": Allowed(
        "a list of objects, or of their JSON", lambda value: _is_list(value, _is_tool)
    ),
    "tool_choice": Allowed(
        "none, auto, required or the object of a function",
        lambda value: _is_text(value) or isinstance(value, Mapping),
    ),
    "adapter": _NAME_TEXT,
    "response_format": Allowed("an object", lambda value: isinstance(value, Mapping)),
    # a model
    "model_id": _NAME,
    "quantized_model_id": _NAME,
    "quantized_filename": _TEXTS,
    "tok_model_id": _NAME,
    "tokenizer_json": _PATH,
    "mmproj_filename": _NAME,
    "hf_cache_path": _PATH,
    "imatrix": _PATH,
    "calibration_file": _PATH,
    "write_uqff": _PATH,
    "from_uqff": _TEXTS,
    "max_edge": _POSITIVE,
    "adapters": _ADAPTERS,
    "max_adapters": _POSITIVE,
    "max_rank": _POSITIVE,
    "max_bytes": _POSITIVE,
    "max_num_images": _POSITIVE,
    "max_image_length": _POSITIVE,
    "max_audio_seconds": AUDIO_SECONDS,
    # a runner
    "devices": Allowed('a list such as ["cuda:0=24GiB"]', lambda value: _is_list(value, _is_text)),
    "device_map": _LAYERS,
    "num_device_layers": _LAYERS,
    "in_situ_quant": _FORMAT,
    "max_seq_len": _POSITIVE,
    "max_batch_size": _POSITIVE,
    "max_seqs": _POSITIVE,
    "prefix_cache_n": _COUNT,
    "prefix_cache_dir": _PATH,
    "prefix_cache_size": _SIZE,
    "prefix_cache_dir_size": _SIZE,
    "draft_model": _PATH,
    "mtp": _FLAG,
    "speculate": one_of(*get_args(Speculation)),
    "no_kv_cache": _FLAG,
    "no_paged_attn": _FLAG,
    "paged_attn": _FLAG,
    "pa_ctxt_len": _POSITIVE,
    "pa_gpu_mem_usage": Number(0, 1, above=True),
    "pa_gpu_mem": _POSITIVE,
    "pa_blk_size": one_of(*BLOCK_SIZES),
    "pa_cache_type": one_of(*CACHE_TYPES),
    "activations": one_of(*ACTIVATION_BITS),
    "chat_template": _PATH,
    "jinja_explicit": _PATH,
    "token_source": _TEXT,
    "cpu": _FLAG,
    "workers": _COUNT,
    "tensor_parallel_size": _POSITIVE,
    "rejoin_limit_s": Number(0),
    "on_progress": Allowed("a function", callable),
    # tokenizing and detokenizing
    "text": _TEXT,
    "tokens": Allowed("a list of token ids", lambda value: _is_list(value, _COUNT.accepts)),
    "add_special_tokens": _FLAG,
    "skip_special_tokens": _FLAG,
}


def check(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
    """Check the values of fields, by name; the default value of a field is always accepted.

    Raises UsageError for a value that the field does not accept, Unsupported for a field that is
    not supported and has another value than its default.
    """
    for name, value in values.items():
        if defaults is not None and name in defaults and _is_same(value, defaults[name]):
            continue
        if name not in FIELDS:
            raise Unsupported(f"{name} is not supported", hint="leave it out")
        require(name, value, FIELDS[name])


def check_fields(instance: Any, types: Mapping[str, FieldType]) -> None:
    """`check` the fields of a dataclass; `types` override those in `FIELDS`."""
    fields = [each for each in dataclasses.fields(instance) if each.name not in types]
    check(
        {each.name: getattr(instance, each.name) for each in fields},
        {each.name: each.default for each in fields},
    )
    for name, field_type in types.items():
        require(name, getattr(instance, name), field_type)


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """`check` the arguments that `function` was called with; `given` has them by name."""
    parameters = inspect.signature(function).parameters.values()
    check(given, {each.name: each.default for each in parameters})


def check_keys(what: str, given: Mapping[Any, Any], known: Iterable[str]) -> None:
    """Raise Unsupported if the mapping `given` has a key that is not one of `known`."""
    for key in given:
        if key not in known:
            raise Unsupported(
                f"the key {quoted(key)} of {what} is not supported", hint="leave it out"
            )


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
