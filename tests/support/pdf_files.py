"""Small PDF files, written by hand."""

from __future__ import annotations

from collections.abc import Sequence


def pdf_of(*pages: str, streams: Sequence[bytes] = ()) -> bytes:
    """A PDF file whose pages have these lines, or these streams of operators."""
    drawn = streams or [f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode() for text in pages]
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(drawn)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(drawn)),
        font,
    ]
    for index, stream in enumerate(drawn):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * index),
            stream if stream.startswith(b"<<") else _stream(stream),
        ]
    return with_objects(objects)


def _stream(content: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)


def with_objects(objects: Sequence[bytes]) -> bytes:
    """A PDF file of these objects, of which the first is the catalog."""
    out, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\n"
        b"startxref\n%d\n%%%%EOF" % (len(objects) + 1, table, len(objects) + 1, len(out))
    )
