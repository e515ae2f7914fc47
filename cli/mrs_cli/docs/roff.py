"""Man pages in roff, with the macros of man(7): what pages of every section are made of."""

from __future__ import annotations

import re

#: What means something to roff, or what a terminal would show as another character, which a
#: reader could not paste into a shell.
LITERAL = str.maketrans(
    {
        "\\": "\\e",
        "-": "\\-",
        "'": "\\(aq",
        '"': "\\(dq",
        "`": "\\(ga",
        "^": "\\(ha",
        "~": "\\(ti",
    }
)


def page(name: str, section: int, manual: str, summary: str, sections: dict[str, str]) -> str:
    """A page of `manual` with a NAME and these sections, whose titles and bodies are roff."""
    heading = f'.TH {escaped(name).upper()} {section} "" mrs "{manual}"\n.ad l\n.nh'
    named = {"NAME": f"{escaped(name)} \\- {escaped(summary)}", **sections}
    bodies = (f".SH {title}\n{body}" for title, body in named.items())
    return "\n".join([heading, *bodies]) + "\n"


def definitions(rows: dict[str, str]) -> str:
    """A list of terms in bold, with a text each."""
    return "\n".join(f".TP\n.B {escaped(term)}\n{escaped(text)}" for term, text in rows.items())


def references(pages: list[tuple[str, int]]) -> str:
    """A list of pages, each a name and a section."""
    lines = (f".BR {escaped(name)} ({section})," for name, section in pages)
    return "\n".join(lines).removesuffix(",")


def escaped(text: str) -> str:
    """`text` for roff, in ASCII: a reader sees each of its characters, and none is a command."""
    text = re.sub(r"^\.", r"\\&.", text.translate(LITERAL), flags=re.MULTILINE)
    return "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text)
