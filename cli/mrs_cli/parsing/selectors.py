"""The ways to name a model, for every command that takes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mrs.request import RunRequest
from mrs_cli.environment import Environment
from mrs_cli.parsing import model_requests as ask
from mrs_cli.parsing.flags import (
    AskFlags,
    BenchFlags,
    GgufFlags,
    GlobalFlags,
    OutputFlags,
    PlainFlags,
    PlanFlags,
    PlanningFlags,
    VisionFlags,
)


@dataclass(frozen=True)
class Selector:
    """A way to name a model: a command, its flags, and the request they make."""

    name: str
    help: str
    flags: type
    request: Callable[[GlobalFlags, Any, PlanningFlags], RunRequest]


SELECTORS = (
    Selector("plain", "A safetensors model.", PlainFlags, ask.plain_request),
    Selector("vision-plain", "A safetensors model that sees.", VisionFlags, ask.vision_request),
    Selector("gguf", "A GGUF model.", GgufFlags, ask.gguf_request),
)


@dataclass(frozen=True)
class Call:
    """What the words before a selector said; it travels as the context's `obj`."""

    environment: Environment
    flags: GlobalFlags
    ask: AskFlags
    output: OutputFlags
    plan: PlanFlags = field(default_factory=PlanFlags)
    planning: PlanningFlags = field(default_factory=PlanningFlags)
    bench: BenchFlags = field(default_factory=BenchFlags)
