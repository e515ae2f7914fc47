"""Long texts become tokens in a process of their own, which ends if they are not wanted any more.

The tokenizers library cannot be interrupted, and to cut a text could change its tokens.
"""

from __future__ import annotations

import json
import sys
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mrs.errors import ExitCode, NotReadable
from mrs.process.memory_room import MemoryRoom
from mrs.process.work import TurnLock, current_work
from mrs.text.backend import encode, parse_backend, require_characters, room_for
from mrs.text.child_process import new_process

if TYPE_CHECKING:
    import tokenizers

#: Texts of more characters are long: these take about half a second.
MOST_CHARACTERS = 2**19
#: What a process may take for the largest vocabularies, and for each character of the text.
_BASE_BYTES, _CHARACTER_BYTES = 2**31, 1024
#: Processor time for each character, fifty times what the slowest published tokenizer takes.
_BASE_SECONDS, _CHARACTER_SECONDS = 60, 1e-4
#: One at a time: each takes much memory.
_turn = TurnLock()


def encode_ids(
    backend: tokenizers.Tokenizer,
    text: str,
    *,
    add_special_tokens: bool,
    room: MemoryRoom | None = None,
) -> list[int]:
    """As `encode`, the ids alone; that of a long text ends as soon as its work is abandoned."""
    if len(text) <= MOST_CHARACTERS:
        return list(encode(backend, text, add_special_tokens=add_special_tokens, room=room).ids)
    require_characters(text)
    return _ids_of_long_text(backend, text, add_special_tokens, room)


def _ids_of_long_text(
    backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool, room: MemoryRoom | None
) -> list[int]:
    request = {
        "tokenizer": backend.to_str(),
        "encode_special_tokens": backend.encode_special_tokens,
        "add_special_tokens": add_special_tokens,
        "seconds": _BASE_SECONDS + int(_CHARACTER_SECONDS * len(text)),
        "text": text,
    }
    content, work = json.dumps(request).encode(), current_work()
    with room_for(text, room), _turn:
        try:
            process = new_process(__name__, _BASE_BYTES + _CHARACTER_BYTES * len(text))
        except OSError as error:
            raise _failed(error.strerror or str(error)) from error
        with process, work.telling(process.kill):
            try:
                ids, _ = process.communicate(content)
            except BaseException:
                process.kill()
                raise
    work.check()
    if process.returncode == ExitCode.NOT_READABLE:
        raise NotReadable(ids.decode())
    if process.returncode:
        raise _failed("it takes too much memory or time, or its tokenizer fails")
    all_ids = array("I", ids)
    return all_ids.tolist()


def _failed(reason: str) -> NotReadable:
    return NotReadable(f"a long text cannot be tokenized: {reason}", hint="shorten it")


def serve(max_bytes: int) -> None:
    """Answer one request, from standard input on standard output."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    _limit(max_bytes, request["seconds"])
    backend = parse_backend(request["tokenizer"])
    backend.encode_special_tokens = request["encode_special_tokens"]
    more = {"add_special_tokens": request["add_special_tokens"]}
    try:
        ids = encode(backend, request["text"], **more).ids
    except NotReadable as error:
        sys.stdout.buffer.write(str(error).encode())
        sys.exit(error.exit_code)
    sys.stdout.buffer.write(array("I", ids).tobytes())


def _limit(max_bytes: int, seconds: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    for kind, most in ((resource.RLIMIT_AS, max_bytes), (resource.RLIMIT_CPU, seconds)):
        with suppress(OSError, ValueError):  # macOS may refuse it
            resource.setrlimit(kind, (most, most))
