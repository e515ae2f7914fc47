"""The models of `mrs multi-model`, from a JSON file in the form of mistral.rs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from mrs.errors import UsageError
from mrs.process.files import read_at_most
from mrs.request import Dtype, RunRequest
from mrs.source.address import model_name
from mrs_cli.parsing.flags.global_flags import GlobalFlags
from mrs_cli.parsing.flags.model_flags import GgufFlags, PlainFlags, VisionFlags
from mrs_cli.parsing.flags.planning_flags import PlanningFlags
from mrs_cli.parsing.model_requests import gguf_request, plain_request, vision_request

_SELECTORS: dict[str, tuple[Any, Callable[[GlobalFlags, Any, PlanningFlags], RunRequest]]] = {
    "Plain": (PlainFlags, plain_request),
    "Embedding": (PlainFlags, plain_request),
    "VisionPlain": (VisionFlags, vision_request),
    "Gguf": (GgufFlags, gguf_request),
}
_SETTINGS = ("alias", "chat_template", "jinja_explicit", "num_device_layers", "in_situ_quant")
#: A larger file is no list of models.
MAX_FILE_BYTES = 1024**2
_NUMBERS = (
    "max_edge",
    "max_num_images",
    "max_image_length",
    "max_audio_seconds",
    "max_seq_len",
    "max_batch_size",
)
#: Separators of values that may be lists.
_SEPARATORS = {"num_device_layers": ";", "quantized_filename": " "}


def read_models(
    path: str, flags: GlobalFlags, planning: PlanningFlags, default: str | None
) -> dict[str, RunRequest]:
    """The requests by the names of the models; `default`, or else the first one, comes first.

    A model's own settings take precedence over flags. Raises UsageError.
    """
    given = _object(_json(path), f"--config {path}")
    models: dict[str, RunRequest] = {}
    for label, value in given.items():
        where = f"{label} in {path}"
        entry = _object(value, where)
        request = _request(entry, where, flags, planning)
        name = entry.get("alias") or model_name(request.source.model_id)
        if name in models:
            raise UsageError(f"two models in {path} are named {name}", hint="give one an alias")
        models[name] = request
    if not models:
        raise UsageError(f"--config {path} has no model", hint='give {"NAME": {"Plain": {…}}}')
    if default is None:
        return models
    default_name = next((name for name in models if name == default), None) or next(
        (name for name, each in models.items() if each.source.model_id == default), None
    )
    if default_name is None:
        raise UsageError(
            f"--default-model-id {default} is not in {path}", hint=f"give {', '.join(models)}"
        )
    return {default_name: models[default_name], **models}


def _request(
    entry: Mapping[str, Any], where: str, flags: GlobalFlags, planning: PlanningFlags
) -> RunRequest:
    selectors = [name for name in entry if name not in _SETTINGS]
    if len(selectors) != 1 or selectors[0] not in _SELECTORS:
        raise UsageError(
            f"{where} has no one selector that mrs knows: {', '.join(selectors) or 'none'}",
            hint=f"give one of {', '.join(_SELECTORS)}",
        )
    group, make = _SELECTORS[selectors[0]]
    wanted = _object(entry[selectors[0]], f"{selectors[0]} of {where}")
    known = {field.name for field in fields(group)}
    own_planning = {field.name for field in fields(PlanningFlags)}
    values = _values(wanted, known | own_planning, f"{selectors[0]} of {where}")
    needed = "quantized_model_id" if group is GgufFlags else "model_id"
    if needed not in values:
        raise UsageError(f"{selectors[0]} of {where} has no {needed}", hint="name the model")
    if isinstance(values.get("quantized_filename"), str):
        values["quantized_filename"] = [values["quantized_filename"]]
    settings = _values({k: entry[k] for k in _SETTINGS if k in entry}, _SETTINGS, where)
    settings.pop("alias", None)
    if "in_situ_quant" in settings:
        settings["isq"] = settings.pop("in_situ_quant").lower()
    return make(
        replace(flags, **settings),
        group(**{name: value for name, value in values.items() if name in known}),
        replace(planning, **{k: v for k, v in values.items() if k in own_planning - known}),
    )


def _values(given: Mapping[str, Any], known: Collection[str], where: str) -> dict[str, Any]:
    """The values that are not null, of the types that flags have."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name not in known:
            names = ", ".join(sorted(known))
            raise UsageError(f"{where} has the unknown field {name}", hint=f"known are {names}")
        if isinstance(value, list) and name in _SEPARATORS:
            value = _SEPARATORS[name].join(map(str, value))
        is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not (is_number if name in _NUMBERS else isinstance(value, str)):
            kind = "a whole number above 0" if name in _NUMBERS else "a text"
            raise UsageError(f"{name} of {where} is not {kind}", hint="change its value")
        settings[name] = value
    dtype = settings.get("dtype", "auto").lower()
    if dtype not in get_args(Dtype):
        raise UsageError(f"dtype of {where} is unknown", hint=f"give {', '.join(get_args(Dtype))}")
    return settings | ({"dtype": dtype} if "dtype" in settings else {})


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is not a JSON object", hint='give {"NAME": {"Plain": {…}}}')
    return value


def _json(path: str) -> Any:
    try:
        text = read_at_most(Path(path).expanduser(), MAX_FILE_BYTES)
        return json.loads(text.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"not JSON: {error}"
        raise UsageError(f"--config {path} cannot be read: {reason}") from error
