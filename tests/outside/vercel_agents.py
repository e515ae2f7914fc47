"""Ten turns of an agent with the SDK of Vercel, by each of its clients for servers like this.

    python tests/outside/vercel_agents.py

At each turn the model gets the prompt that transformers makes of the conversation. Needs trl, node
and npm, which fetches the packages. Ends with exit code 0 if every check holds.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from serving import run
from transformers import PreTrainedTokenizerFast

import mrs.demo

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "server")]

from running_server import running

from support.scripted_agent import QUESTIONS, ScriptedAgent

SCRIPT = Path(__file__).with_suffix(".mjs")
PACKAGES = ("ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic")
#: The client of OpenAI for chats reads no thoughts, and so sends none back.
CLIENTS = {"chat": False, "responses": True, "compatible": True, "anthropic": True}


def main() -> int:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(Path(mrs.demo.__file__).parent / "model")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = shutil.copy(SCRIPT, folder)
        if code := run("npm", "install", "--silent", "--no-audit", *PACKAGES, folder=folder):
            return code
        for client, sends_thoughts in CLIENTS.items():
            agent = ScriptedAgent("qwen3", "<|im_end|>")
            with agent.running(), running(chat_template=str(agent.template)) as server:
                code = run("node", script, server.url, client, *QUESTIONS.values(), folder=folder)
            if code or agent.prompts != agent.expected(tokenizer, sends_thoughts=sends_thoughts):
                print(f"{client}: exit code {code}, {len(agent.prompts)} prompts, not as expected")
                return code or 1
            print(f"{client}: {len(agent.prompts)} prompts are those of transformers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
