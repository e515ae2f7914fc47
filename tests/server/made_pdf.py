"""Makes small PDF files."""

from __future__ import annotations

from collections.abc import Sequence

LATIN = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
#: A font whose characters only a table of Adobe's tells.
CHINESE = (
    "<< /Type /Font /Subtype /Type0 /BaseFont /Song /Encoding /UniGB-UCS2-H /DescendantFonts"
    " [<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Song"
    " /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 2 >> >>] >>"
)
NEEDS_PASSWORD = (
    f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{'61' * 32}> /U <{'62' * 32}> >>"
    f" /ID [<{'63' * 16}> <{'63' * 16}>]"
)


def pdf(pages: Sequence[Sequence[str]], font: str = LATIN, more: str = "") -> bytes:
    """A PDF whose pages have these lines; `more` goes into its trailer."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        font,
    ]
    for number, lines in enumerate(pages):
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792]"
            f" /Resources << /Font << /F 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>"
        )
        drawn = " ".join(f"0 -20 Td ({line}) Tj" for line in lines)
        text = f"BT /F 12 Tf 72 720 Td {drawn} ET"
        objects.append(f"<< /Length {len(text)} >>\nstream\n{text}\nendstream")
    body, offsets = "%PDF-1.7\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{each}\nendobj\n"
    entries = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    return (
        f"{body}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{entries}"
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {more} >>\n"
        f"startxref\n{len(body)}\n%%EOF\n"
    ).encode()
