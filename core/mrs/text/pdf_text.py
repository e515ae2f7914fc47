"""The text of PDF files, read in a subprocess: a file from anyone may take any time and memory.

The subprocess has the walls of that for chat templates around it: no files, no network, and
`MAX_BYTES` of memory. It is killed after `MAX_SECONDS` of processor time, or `_PATIENCE` times as
many of the clock.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

from mrs.errors import MrsError, NotReadable, Unsupported
from mrs.text.child_process import answered_line, end_process, new_process

#: The beginning of each PDF file.
MARK = b"%PDF-"
MAX_FILE_BYTES = 32 * 2**20
MAX_PAGES = 2000
MAX_CHARACTERS = 2**22
MAX_SECONDS = 30.0
MAX_BYTES = 768 * 2**20
_PATIENCE = 4
#: The longest JSON encoding of a character, and of everything in a reply except the text.
_BYTES_PER_CHARACTER, _REPLY_BYTES = 12, 2**16


class PdfText(NamedTuple):
    """The text of a file with so many pages."""

    text: str
    pages: int


def pdf_text(content: bytes, name: str) -> PdfText:
    """The text of the PDF file of this name.

    Raises NotReadable for a file that is damaged, encrypted, has no text or exceeds a limit, and
    Unsupported without pypdf.
    """
    if find_spec("pypdf") is None:
        raise Unsupported("PDF files need the package pypdf", where=name, hint="pip install pypdf")
    if len(content) > MAX_FILE_BYTES:
        raise NotReadable(
            f"a PDF file may have {MAX_FILE_BYTES >> 20} MiB",
            where=name,
            hint="attach a part of it",
        )
    reply = _answer(content)
    match reply:
        case {"text": str(text), "pages": int(pages)} if text.strip():
            return PdfText(text, pages)
        case {"text": str()}:
            raise NotReadable(
                "the PDF file has no text", where=name, hint="are its pages scanned images?"
            )
        case {"error": str(reason)}:
            raise NotReadable(f"the PDF file cannot be read: {reason}", where=name)
    raise NotReadable("the PDF file crashes its reader", where=name)


def _answer(content: bytes) -> Any:
    """The subprocess's reply, which may be anything: a file may have taken it over."""
    request = {
        "content": b64encode(content).decode(),
        "max_pages": MAX_PAGES,
        "max_characters": MAX_CHARACTERS,
        "seconds": MAX_SECONDS,
    }
    try:
        process = new_process("mrs.text.pdf_sandbox", MAX_BYTES)
    except OSError as error:
        raise MrsError(
            "the process for PDF files cannot be started", where=error.strerror or ""
        ) from error
    is_late = threading.Event()

    def kill() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(MAX_SECONDS * _PATIENCE, kill)
    timer.daemon = True
    timer.start()
    try:
        max_bytes = _BYTES_PER_CHARACTER * MAX_CHARACTERS + _REPLY_BYTES
        line = answered_line(process, max_bytes, json.dumps(request).encode() + b"\n")
        code = None if line else process.wait()
    finally:
        timer.cancel()
        end_process(process)
    if is_late.is_set() or code == _TIME_IS_UP:
        return {"error": f"it takes longer than {MAX_SECONDS:g} s"}
    with suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


#: The return code of a process that SIGPROF has ended.
_TIME_IS_UP = -27
