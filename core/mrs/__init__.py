"""Plans, loads and runs large language models on the devices of this machine.

    from mrs import ChatCompletionRequest, Runner, Which

    runner = Runner(which=Which.Plain(model_id="demo"))
    response = runner.send_chat_completion_request(
        ChatCompletionRequest(messages=[{"role": "user", "content": "Who are you?"}])
    )
    print(response.choices[0].message.content)

Importing this module is fast: torch is imported when the first `Runner` is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrs.api.architectures import (
        Architecture,
        EmbeddingArchitecture,
        ModelDType,
        MultimodalArchitecture,
        VisionArchitecture,
    )
    from mrs.api.async_runner import AsyncRunner
    from mrs.api.lora_adapter import LoraAdapter
    from mrs.api.model_plan import DevicePlan, ModelPlan, plan_model
    from mrs.api.notebook import show_progress, show_reply
    from mrs.api.requests import ChatCompletionRequest, CompletionRequest, EmbeddingRequest
    from mrs.api.responses import (
        ChatCompletionChunkResponse,
        ChatCompletionResponse,
        CompletionChunkResponse,
        CompletionResponse,
    )
    from mrs.api.runner import Runner
    from mrs.api.which import Which

__all__ = [
    "Architecture",
    "AsyncRunner",
    "ChatCompletionChunkResponse",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "CompletionChunkResponse",
    "CompletionRequest",
    "CompletionResponse",
    "DevicePlan",
    "EmbeddingArchitecture",
    "EmbeddingRequest",
    "LoraAdapter",
    "ModelDType",
    "ModelPlan",
    "MultimodalArchitecture",
    "Runner",
    "VisionArchitecture",
    "Which",
    "plan_model",
    "show_progress",
    "show_reply",
]

_MODULES = {
    "Architecture": "architectures",
    "AsyncRunner": "async_runner",
    "ChatCompletionRequest": "requests",
    "CompletionRequest": "requests",
    "DevicePlan": "model_plan",
    "EmbeddingArchitecture": "architectures",
    "EmbeddingRequest": "requests",
    "LoraAdapter": "lora_adapter",
    "ModelDType": "architectures",
    "ModelPlan": "model_plan",
    "MultimodalArchitecture": "architectures",
    "Runner": "runner",
    "VisionArchitecture": "architectures",
    "Which": "which",
    "plan_model": "model_plan",
    "show_progress": "notebook",
    "show_reply": "notebook",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mrs.api.{_MODULES.get(name, 'responses')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
