"""Serve a model over HTTP, with the interface of OpenAI.

`server/routes/endpoint.py` reads a request into a struct, `server/endpoints/chat.py` makes the
prompt in a thread, and `server/replies/group.py` gets the engine's outputs from
`server/replies/relay.py`, which wakes the event loop once for each step. Before that,
`server/models/pool.py` loads the model if it is not loaded, after `server/models/room.py` has said
which others have to leave. A new path is a row in `server/routes/table.py`; its types make the
OpenAPI document. `server/page/` is the chat page, plain HTML, CSS and JavaScript without a build
step, with published libraries in `page/vendor/`; its tests run where Chromium is installed, and
`tests/pictures/page.py` takes the screenshots of the manual.
"""
