"""From flags to a request: what is to be loaded, what is to be asked, how it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from mrs.errors import UsageError
from mrs.request import ModelSource, RunRequest, Sampling, VisionRequest
from mrs_cli.flags import (
    AskFlags,
    GgufFlags,
    GlobalFlags,
    OutputFlags,
    PictureFlags,
    PlainFlags,
    PlanningFlags,
    VisionFlags,
)
from mrs_cli.paged_flags import paged_request
from mrs_cli.settings import Biases

if TYPE_CHECKING:
    from mrs_cli.saved_chat import SavedChat


@dataclass(frozen=True)
class Task:
    """One run of the program. Without a `prompt`, prompts come from standard input.

    `images` are pictures that go with the prompt; `resumed` is the chat to go on with.
    """

    request: RunRequest
    sampling: Sampling
    prompt: str | None = None
    images: tuple[str, ...] = ()
    system: str | None = None
    interactive: bool = False
    json: bool = False
    quiet: bool = False
    verbose: int = 0
    log: str | None = None
    resumed: SavedChat | None = None


def task(
    flags: GlobalFlags, ask: AskFlags, output: OutputFlags, request: RunRequest, *, stdin: bool
) -> Task:
    """The task that flags describe; `stdin` is whether `-` asked for standard input."""
    prompt = _prompt(ask.prompt or ())
    if prompt is not None and stdin:
        raise UsageError("both --prompt and - are given", hint="give one of the two")
    if ask.image and prompt is None:
        raise UsageError("--image goes with a question", hint="add --prompt TEXT")
    if ask.image and request.vision is None:
        raise UsageError(
            "--image is for models that see",
            hint="name the model with vision-plain, or a projector with gguf --mmproj",
        )
    if flags.log == "":
        raise UsageError("--log names no file", hint="give a file name")
    resumed = _resumed(flags)
    chosen = sampling(ask, resumed.sampling if resumed else Sampling())
    system = None if ask.system is None else _text(ask.system)
    return Task(
        request=request,
        sampling=chosen if flags.seed is None else replace(chosen, seed=flags.seed),
        prompt=prompt,
        images=tuple(ask.image or ()),
        system=resumed.system if resumed and system is None else system,
        interactive=flags.interactive_mode,
        json=output.json,
        quiet=output.quiet,
        verbose=output.verbose,
        log=flags.log,
        resumed=resumed,
    )


def _resumed(flags: GlobalFlags) -> SavedChat | None:
    """The last chat, if it is to go on; what flags say goes before its settings."""
    if not flags.resume:
        return None
    if not flags.interactive_mode:
        raise UsageError("--continue goes on with a chat", hint="add -i")
    from mrs_cli.last_chat import last_chat

    return last_chat()


def _prompt(given: Sequence[str]) -> str | None:
    """The only prompt that is given, if one is."""
    if len(given) > 1:
        raise UsageError(
            f"--prompt is given {len(given)} times",
            hint="give one, or pipe several in, one a line",
        )
    if given and not given[0].strip():
        raise UsageError("--prompt is empty", hint="give it a text")
    return _text(given[0]) if given else None


def sampling(ask: AskFlags, otherwise: Sampling) -> Sampling:
    """The settings given, and `otherwise` for the others."""
    given: dict[str, Any] = {
        each.name: value
        for each in fields(Sampling)
        if (value := getattr(ask, each.name, None)) is not None
    }
    for name, flag in (("stop", "--stop"), ("dry_sequence_breakers", "--dry-sequence-breaker")):
        if name in given:
            given[name] = tuple(_text(text) for text in given[name])
            if "" in given[name]:
                raise UsageError(f"{flag} is empty", hint="give it a text")
    if "logit_bias" in given:
        given["logit_bias"] = tuple(
            Biases().pair(text, spelled=f"--logit-bias {text}") for text in given["logit_bias"]
        )
    return replace(otherwise, **given)


def plain_request(flags: GlobalFlags, model: PlainFlags, planning: PlanningFlags) -> RunRequest:
    """What `plain` asks to load."""
    source = ModelSource(
        model_id=_model_id(model.model_id),
        container="safetensors",
        token_source=_token_source(flags.token_source),
        cache_path=model.hf_cache_path,
        tokenizer_json=model.tokenizer_json,
    )
    return RunRequest(source, arch=model.arch, **_common(flags, planning))


def vision_request(flags: GlobalFlags, model: VisionFlags, planning: PlanningFlags) -> RunRequest:
    """What `vision-plain` asks to load."""
    return replace(plain_request(flags, model, planning), vision=_pictures(model))


def _pictures(flags: PictureFlags) -> VisionRequest:
    """The pictures that are planned for, as far as flags say."""
    given = {
        each.name: value
        for each in fields(VisionRequest)
        if (value := getattr(flags, each.name)) is not None
    }
    return VisionRequest(**given)


def gguf_request(flags: GlobalFlags, model: GgufFlags, planning: PlanningFlags) -> RunRequest:
    """What `gguf` asks to load."""
    model_id = _model_id(model.quantized_model_id)
    filenames = tuple(" ".join(model.quantized_filename or ()).split())
    source = ModelSource(
        model_id=model_id,
        container="gguf",
        filenames=filenames,
        token_source=_token_source(flags.token_source),
        tokenizer_model_id=model.tok_model_id,
        mmproj=model.mmproj,
    )
    vision = _pictures(model)
    if model.mmproj is None and vision != VisionRequest():
        raise UsageError(
            "flags for images, and nothing that sees", hint="name the projector with --mmproj FILE"
        )
    return RunRequest(source, vision=vision if model.mmproj else None, **_common(flags, planning))


def _common(flags: GlobalFlags, planning: PlanningFlags) -> dict[str, Any]:
    """The fields of a request that every selector fills alike; those not given are left out."""
    given = {
        "isq": flags.isq,
        "layer_map": flags.num_device_layers,
        "max_seqs": flags.max_seqs,
        "prefix_cache_n": flags.prefix_cache_n,
        "prefix_cache_dir": flags.prefix_cache_dir,
        "prefix_cache_dir_size": flags.prefix_cache_dir_size,
        "strategy": flags.strategy,
        "plan_file": flags.plan_file,
        "chat_template": _template("--chat-template", flags.chat_template, ".jinja", ".json"),
        "jinja_explicit": _template("--jinja-explicit", flags.jinja_explicit, ".jinja"),
        "thinking": _thinking(flags.thinking),
        "dtype": planning.dtype,
        "max_seq_len": planning.max_seq_len,
        "max_batch_size": planning.max_batch_size,
    }
    return {
        "cpu": flags.cpu,
        "paged": paged_request(flags),
        "kv_cache": not flags.no_kv_cache,
        "cpu_spill": not flags.no_cpu_spill,
        "calibration": not flags.no_calibration,
        **{name: value for name, value in given.items() if value is not None},
    }


def _model_id(text: str) -> str:
    if not text.strip():
        raise UsageError("-m names no model", hint="give a hub id, a local folder or demo")
    return text


def _template(flag: str, path: str | None, *suffixes: str) -> str | None:
    if path is not None and PurePath(path).suffix.lower() not in suffixes:
        raise UsageError(f"{flag} {path} is no {' or '.join(suffixes)} file")
    return path


def _thinking(text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise UsageError(
            f"--thinking {text} is no choice", hint="give true or false; the flag alone is true"
        )
    return text.lower() == "true"


def _token_source(text: str | None) -> str:
    """`text` when it is spelled rightly. A literal token is never quoted."""
    if text is None or text in ("cache", "none"):
        return text or "cache"
    kind, colon, value = text.partition(":")
    if kind not in ("literal", "env", "path") or not (colon and value):
        quoted = f"{kind}{colon}" if colon else kind
        raise UsageError(
            f"--token-source {quoted} is not a source",
            hint="give literal:VALUE, env:NAME, path:FILE, cache or none",
        )
    return text


def _text(argument: str) -> str:
    """`argument` with bytes that were no UTF-8 replaced, so that it can be encoded again."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
