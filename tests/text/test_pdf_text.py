"""The text of PDF files; those of anyone take no more time and memory than they may."""

from __future__ import annotations

import time
import zlib

import pytest

from mrs.errors import NotReadable
from mrs.text import pdf_text as module
from mrs.text.pdf_text import pdf_text
from support.pdf_files import pdf_of, with_objects

pytest.importorskip("pypdf")


def test_pages_in_order():
    assert pdf_text(pdf_of("Hello one", "Hello two"), "x.pdf") == ("Hello one\n\nHello two", 2)


def packed(content: bytes, times: int = 1) -> bytes:
    for _ in range(times):
        content = zlib.compress(content, 9)
    filters = b"/FlateDecode " * times
    return b"<< /Length %d /Filter [%s] >>\nstream\n%s\nendstream" % (
        len(content),
        filters,
        content,
    )


BOMB = packed(packed_zeros := zlib.compress(bytes(2**30), 9)).replace(
    b"[/FlateDecode ]", b"[/FlateDecode /FlateDecode]"
)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"%PDF-1.4 junk", "it is damaged"),
        (pdf_of("x")[:200], "it is damaged"),
        (pdf_of(""), "has no text"),
        (pdf_of("x").replace(b"/Count 1", b"/Count 99999999"), None),
        (pdf_of(streams=[BOMB]), "too much memory|it is damaged|takes longer|has no text"),
        (
            with_objects(
                [b"<< /Type /Catalog /Pages 2 0 R >>",
                 b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"]
            ),
            "damaged|nested|no text|longer|memory",
        ),
        (pdf_of("x").replace(b"/Root 1 0 R", b"/Root 1 0 R /Encrypt 3 0 R"), "damaged|password"),
    ],
    ids=["junk", "cut", "empty", "count", "bomb", "circle", "encrypted"],
)  # fmt: skip
def test_hostile_files_end_soon(content, why):
    began = time.monotonic()
    if why is None:
        with_text = pdf_text(content, "x.pdf")
        assert with_text.text == "x"
    else:
        with pytest.raises(NotReadable, match=why) as caught:
            pdf_text(content, "x.pdf")
        assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("MAX_FILE_BYTES", 10, "a PDF file may have 0 MiB"),
        ("MAX_PAGES", 1, "it has 2 pages, and at most 1 are read"),
        ("MAX_CHARACTERS", 5, "it has more than 5 characters of text"),
        ("MAX_BYTES", 2**24, "the PDF file"),
        ("MAX_SECONDS", 0.001, "it takes longer than 0.001 s"),
    ],
)
def test_limits(monkeypatch, name, value, why):
    monkeypatch.setattr(module, name, value)
    padding = 2**24 if name == "MAX_BYTES" else 0
    if name == "MAX_SECONDS":
        monkeypatch.setattr(module, "_PATIENCE", 1)
    with pytest.raises(NotReadable, match=why):
        pdf_text(pdf_of("Hello one", "Hello two") + bytes(padding), "x.pdf")
