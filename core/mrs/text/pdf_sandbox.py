"""The program of the subprocess that reads PDF files, behind the same walls as chat templates.

Only this subprocess imports pypdf. See `pdf_text` for its limits.
"""

from __future__ import annotations

import encodings
import importlib
import json
import logging
import pkgutil
import signal
import sys
from base64 import b64decode
from io import BytesIO
from types import ModuleType
from typing import Any

import pypdf  # noqa: TID253

from mrs.text.walls import raise_walls

_ERROR_CHARACTERS = 200


def serve(max_bytes: int) -> None:
    """Answer one request from standard input on standard output, each a line of JSON.

    The process's address space has `max_bytes`.
    """
    # Behind the walls there are no files, so that all that pypdf may import comes first.
    for package in (pypdf, encodings):
        _import_all(package)
    logging.disable()
    raise_walls(max_bytes)
    request = json.loads(sys.stdin.buffer.readline())
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
    sys.stdout.buffer.write(json.dumps(_reply(request)).encode() + b"\n")
    sys.stdout.buffer.flush()


def _import_all(package: ModuleType) -> None:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except ImportError:  # of another system, or for what is not installed
            continue


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    """The `text` of the pages and their number, or the `error`: why there is none."""
    try:
        return _read(b64decode(request["content"]), request["max_pages"], request["max_characters"])
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except Exception as error:  # noqa: BLE001 - damaged files raise anything
        return {"error": f"it is damaged: {error}"[:_ERROR_CHARACTERS]}


def _read(content: bytes, max_pages: int, max_characters: int) -> dict[str, Any]:
    reader = pypdf.PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "it has a password"}
    pages = len(reader.pages)
    if pages > max_pages:
        return {"error": f"it has {pages:,} pages, and at most {max_pages:,} are read"}
    texts, characters = [], 0
    for page in reader.pages:
        texts.append(page.extract_text().strip())
        characters += len(texts[-1])
        if characters > max_characters:
            return {"error": f"it has more than {max_characters:,} characters of text"}
    text = "\n\n".join(filter(None, texts))
    return {"pages": pages, "text": text.encode("utf-8", "replace").decode()}
