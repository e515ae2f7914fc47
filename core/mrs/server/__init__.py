"""Serve a model over HTTP, with the interface of OpenAI.

`server/endpoint.py` reads a request into a struct, `server/chat.py` makes the prompt in a thread,
and `server/reply_group.py` gets the engine's outputs from `server/relay.py`, which wakes the event
loop once for each step. A new path is a row in `server/routes.py`; its types make the OpenAPI
document. `server/page/` is the chat page, plain HTML, CSS and JavaScript without a build step; its
tests run where Chromium is installed, and `tests/pictures/page.py` takes the README's screenshot.
"""
