"""Coding agents that can use a server of ours, and how each is told of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Endpoint:
    """A server: its address without a path, a key, and its model with so many tokens of context."""

    url: str
    key: str
    model: str
    context_tokens: int


@dataclass(frozen=True)
class Agent:
    """A program that is told of a server by variables, by arguments before the person's, or both.

    `unset` are variables that would keep it from using the server.
    """

    title: str
    install: str
    variables: Callable[[Endpoint], Mapping[str, str]]
    arguments: Callable[[Endpoint], list[str]] = field(default=lambda _: [])
    unset: tuple[str, ...] = ()


def _claude(to: Endpoint) -> dict[str, str]:
    kinds = ("OPUS", "SONNET", "HAIKU")
    return {
        "ANTHROPIC_BASE_URL": to.url,
        "ANTHROPIC_AUTH_TOKEN": to.key,
        "ANTHROPIC_MODEL": to.model,
        **{f"ANTHROPIC_DEFAULT_{kind}_MODEL": to.model for kind in kinds},
        # Its own defaults are those of larger models.
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(to.context_tokens),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(to.context_tokens // 4),
    }


def _codex(to: Endpoint) -> list[str]:
    provider = f'name="mrs", base_url="{to.url}/v1", env_key="{_KEY}", wire_api="responses"'
    settings = (
        'model_provider="mrs"',
        f"model={json.dumps(to.model)}",
        f"model_context_window={to.context_tokens}",
        f"model_providers.mrs={{{provider}}}",
    )
    return [word for each in settings for word in ("-c", each)]


def _opencode(to: Endpoint) -> dict[str, str]:
    limit = {"context": to.context_tokens, "output": to.context_tokens // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "mrs",
        "options": {"baseURL": f"{to.url}/v1", "apiKey": f"{{env:{_KEY}}}"},
        "models": {to.model: {"name": to.model, "limit": limit}},
    }
    model = f"mrs/{to.model}"
    config = {"provider": {"mrs": provider}, "model": model, "small_model": model}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config), _KEY: to.key}


#: The variable with the key, for programs that take its name.
_KEY = "MRS_API_KEY"

#: By the name of the program.
AGENTS = {
    "claude": Agent(
        "Claude Code",
        "npm install -g @anthropic-ai/claude-code",
        _claude,
        unset=("ANTHROPIC_API_KEY",),
    ),
    "codex": Agent("Codex", "npm install -g @openai/codex", lambda to: {_KEY: to.key}, _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
    "aider": Agent(
        "aider",
        "pip install aider-install && aider-install",
        lambda to: {"OPENAI_API_KEY": to.key},
        lambda to: [
            *("--model", f"openai/{to.model}", "--openai-api-base", f"{to.url}/v1"),
            "--no-show-model-warnings",
        ],
    ),
}
