"""Ten turns of an agent with thoughts and parallel calls, by the official clients.

At each turn the model gets the prompt that transformers makes of the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anthropic
import pytest
from running_server import RunningServer, running
from transformers import PreTrainedTokenizerFast

import mrs.demo
from support.scripted_agent import FUNCTION, QUESTIONS, SCRIPT, ScriptedAgent, result_of
from support.suites import first

WHY_ABSENT = "trl is not installed: pip install --no-deps trl==1.16.0"
pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason=WHY_ABSENT)
#: Templates that show thoughts and calls; GLM's would print a content of None.
AGENTS = {
    "qwen3": ("<|im_end|>",),
    "qwen3_8": ("<|im_end|>",),
    "glm4moe": ("<|user|>", ""),
}


def by_chat(server: RunningServer) -> None:
    """The client of OpenAI; messages of replies are sent back as they came."""
    messages: list[Any] = []
    for number in range(len(SCRIPT)):
        if number in QUESTIONS:
            messages.append({"role": "user", "content": QUESTIONS[number]})
        reply = server.openai().chat.completions.create(
            model="default", messages=messages, tools=[{"type": "function", "function": FUNCTION}]
        )
        message = reply.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            city = json.loads(call.function.arguments)["city"]
            result = {"role": "tool", "tool_call_id": call.id, "content": result_of(city)}
            messages.append(result)


def by_responses(server: RunningServer, *, is_stored: bool = False) -> None:
    """The same client with items; those of earlier turns are sent again unless stored."""
    items: list[Any] = []
    last = None
    for number in range(len(SCRIPT)):
        if number in QUESTIONS:
            items.append({"role": "user", "content": QUESTIONS[number]})
        last = server.openai().responses.create(
            model="default",
            input=items,
            tools=[{"type": "function", **FUNCTION}],
            previous_response_id=last.id if is_stored and last is not None else None,
        )
        items = [] if is_stored else [*items, *last.output]
        for item in last.output:
            if item.type == "function_call":
                output = result_of(json.loads(item.arguments)["city"])
                result = {"type": "function_call_output", "call_id": item.call_id, "output": output}
                items.append(result)


def by_stored_responses(server: RunningServer) -> None:
    by_responses(server, is_stored=True)


def by_messages(server: RunningServer) -> None:
    """The client of Anthropic; results and questions are blocks of the user's messages."""
    client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=60)
    tool: Any = {
        "name": FUNCTION["name"],
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
    }
    messages: list[Any] = []
    blocks: list[Any] = []
    for number in range(len(SCRIPT)):
        if number in QUESTIONS:
            blocks.append({"type": "text", "text": QUESTIONS[number]})
        messages.append({"role": "user", "content": blocks})
        reply = client.messages.create(
            model="default", max_tokens=200, messages=messages, tools=[tool]
        )
        messages.append({"role": "assistant", "content": reply.content})
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": each.id,
                "content": result_of(each.input["city"]),
            }
            for each in reply.content
            if isinstance(each, anthropic.types.ToolUseBlock)
            for city in [str(each.input["city"])]
        ]


@pytest.mark.few("qwen3_8-by_messages")
@pytest.mark.values
@pytest.mark.parametrize(
    "client", first(2, [by_stored_responses, by_messages, by_chat, by_responses])
)
@pytest.mark.parametrize("template", AGENTS)
def test_every_prompt_is_that_of_transformers(
    template: str, client: Callable[[RunningServer], None]
) -> None:
    agent = ScriptedAgent(template, *AGENTS[template])
    folder = Path(mrs.demo.__file__).parent / "model"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    with agent.running(), running(chat_template=str(agent.template)) as server:
        client(server)
    expected = agent.expected(tokenizer)
    assert len(agent.prompts) == len(expected) == 10
    for made, wanted in zip(agent.prompts, expected, strict=True):
        assert tokenizer.decode(made) == tokenizer.decode(wanted)
        assert made == wanted
