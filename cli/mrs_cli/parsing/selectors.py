"""The selectors, which name a model: `run`, `plain`, `gguf` and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mrs.request import RunRequest
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import (
    BenchFlags,
    EvalFlags,
    FitFlags,
    OutputFlags,
    PlanFlags,
    QuantizeFlags,
)
from mrs_cli.parsing.flags.embed_flags import ClassifyFlags, EmbedFlags, RerankFlags, TextFlags
from mrs_cli.parsing.flags.global_flags import GlobalFlags
from mrs_cli.parsing.flags.model_flags import (
    AnyModelFlags,
    GgufFlags,
    LoraFlags,
    LoraGgufFlags,
    PlainFlags,
    VisionFlags,
)
from mrs_cli.parsing.flags.planning_flags import PlanningFlags
from mrs_cli.parsing.flags.prompt_flags import ModelWord
from mrs_cli.parsing.flags.sampling_flags import AskFlags
from mrs_cli.parsing.flags.server_flags import ServerFlags
from mrs_cli.parsing.model_requests import (
    any_request,
    gguf_request,
    lora_gguf_request,
    lora_request,
    plain_request,
    vision_request,
)


@dataclass(frozen=True)
class Selector:
    """A command that names a model, its flags, and the request made from them."""

    name: str
    flags: type
    request: Callable[[GlobalFlags, Any, PlanningFlags], RunRequest]


#: The selector that may be left out: every command takes its flags as its own.
ANY = Selector("run", AnyModelFlags, any_request)

SELECTORS = (
    ANY,
    Selector("plain", PlainFlags, plain_request),
    Selector("vision-plain", VisionFlags, vision_request),
    Selector("gguf", GgufFlags, gguf_request),
    Selector("lora", LoraFlags, lora_request),
    Selector("lora-gguf", LoraGgufFlags, lora_gguf_request),
)


@dataclass(frozen=True)
class Invocation:
    """The environment and the flags given so far; it is the parser context's `obj`."""

    environment: Environment
    flags: GlobalFlags = field(default_factory=GlobalFlags)
    ask: AskFlags = field(default_factory=AskFlags)
    output: OutputFlags = field(default_factory=OutputFlags)
    named: ModelWord = field(default_factory=ModelWord)
    plan: PlanFlags = field(default_factory=PlanFlags)
    fit: FitFlags = field(default_factory=FitFlags)
    planning: PlanningFlags = field(default_factory=PlanningFlags)
    bench: BenchFlags = field(default_factory=BenchFlags)
    evaluation: EvalFlags = field(default_factory=EvalFlags)
    server: ServerFlags = field(default_factory=ServerFlags)
    embed: EmbedFlags = field(default_factory=EmbedFlags)
    rerank: RerankFlags = field(default_factory=RerankFlags)
    classify: ClassifyFlags = field(default_factory=ClassifyFlags)
    texts: TextFlags = field(default_factory=TextFlags)
    quantize: QuantizeFlags = field(default_factory=QuantizeFlags)
