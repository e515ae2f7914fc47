"""Plans, loads and runs large language models on whatever devices you have.

    from mrs import ChatCompletionRequest, Runner, Which

    runner = Runner(which=Which.Plain(model_id="demo"))
    response = runner.send_chat_completion_request(
        ChatCompletionRequest(messages=[{"role": "user", "content": "Who are you?"}])
    )
    print(response.choices[0].message.content)

Importing this module loads nothing heavy; torch comes with the first `Runner`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mrs.api.requests import ChatCompletionRequest, CompletionRequest
    from mrs.api.responses import (
        ChatCompletionChunkResponse,
        ChatCompletionResponse,
        CompletionChunkResponse,
        CompletionResponse,
    )
    from mrs.api.runner import Runner
    from mrs.api.which import (
        Architecture,
        ModelDType,
        MultimodalArchitecture,
        VisionArchitecture,
        Which,
    )

__all__ = [
    "Architecture",
    "ChatCompletionChunkResponse",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "CompletionChunkResponse",
    "CompletionRequest",
    "CompletionResponse",
    "ModelDType",
    "MultimodalArchitecture",
    "Runner",
    "VisionArchitecture",
    "Which",
]

_MODULES = {
    "Architecture": "which",
    "ChatCompletionRequest": "requests",
    "CompletionRequest": "requests",
    "ModelDType": "which",
    "MultimodalArchitecture": "which",
    "Runner": "runner",
    "VisionArchitecture": "which",
    "Which": "which",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mrs.api.{_MODULES.get(name, 'responses')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
