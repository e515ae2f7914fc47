"""A client that openapi-python-client makes of the server's document, against a server of demo.

    python tests/outside/openapi_client.py

pip installs it into a virtual environment of its own. Ends with exit code 0 if it takes the whole
document without a warning, and the client reads what the server answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from serving import run, serving, venv_with

CALLS = """
import sys
from made.api.default import get_models, post_chat, post_complete, post_messages
from made.client import Client
from made.models import ChatRequest, CompletionRequest, InputMessage, InputMessageRole
from made.models import MessagesRequest

client = Client(sys.argv[1])
models = get_models.sync(client=client)
print([each.id for each in models.data])
text = post_complete.sync(client=client, body=CompletionRequest(
    prompt="The KV cache", max_tokens=3, logprobs=1, echo=True))
print(text.choices[0].text, text.choices[0].logprobs.text_offset)
chat = post_chat.sync(client=client, body=ChatRequest(messages="Hi", max_tokens=3))
print(chat.choices[0].message.content, chat.usage.total_tokens)
message = post_messages.sync(client=client, body=MessagesRequest(
    max_tokens=3, messages=[InputMessage(role=InputMessageRole.USER, content="Hi")]))
print(message.content[0].text, message.stop_reason)
"""


def main() -> int:
    programs = venv_with("openapi-python-client")
    with tempfile.TemporaryDirectory() as name, serving() as address:
        code = run(
            programs / "openapi-python-client", "generate", "--url", f"{address}/openapi.json",
            "--meta", "none", "--output-path", "made", "--fail-on-warning", folder=Path(name),
        )  # fmt: skip
        if code:
            return code
        environment = {**os.environ, "PYTHONPATH": name}
        command = [programs / "python", "-c", CALLS, address]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
