"""Formulas of LaTeX as Unicode text, or not at all: what has no such form stays as it is.

Fractions, roots and scripts have the linear form of Murray Sargent's "Unicode Nearly Plain-Text
Encoding of Mathematics" (Unicode Technical Note 28): (a+b)/c, √(x+1), x^(n/2). Symbols are those of
pylatexenc; scripts and alphabets are those of Unicode's own tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

_LONGEST, _DEEPEST = 4000, 24
_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|\s+|.", re.DOTALL)
_Kind = Literal["text", "word", "fraction", "space"]


class _Atom(NamedTuple):
    """A part of a formula; a `word` keeps apart from letters, a `fraction` from factors."""

    text: str
    kind: _Kind = "text"


class _NotUnicode(Exception):
    """A formula cannot be written in Unicode."""


@lru_cache(maxsize=512)
def unicode_math(source: str) -> str | None:
    """The formula as text, whose lines are those of the formula; None if it has no such form."""
    if len(source) > _LONGEST:
        return None
    try:
        reader = _Reader(_TOKEN.findall(source.strip()))
        text = reader.sequence()
    except (_NotUnicode, RecursionError):
        return None
    return "\n".join(line.strip() for line in text.strip().split("\n")) or None


#: Symbols that pylatexenc's table lacks, or has in another form than this needs.
_SYMBOLS = {
    "iff": "\u21d4", "implies": "\u21d2", "impliedby": "\u21d0", "ne": "\u2260",
    "land": "\u2227", "lor": "\u2228", "neg": "\u00ac", "lnot": "\u00ac", "degree": "\u00b0",
    "models": "\u22a8", "prime": "\u2032", "Re": "\u211c", "Im": "\u2111", "hslash": "\u210f",
    "cdot": "\u00b7", "quad": "  ", "qquad": "    ", "colon": ":", "lbrace": "{", "rbrace": "}",
    "lvert": "|", "rvert": "|", "lVert": "\u2016", "rVert": "\u2016", "gets": "\u2190",
    "to": "\u2192", "leq": "\u2264", "geq": "\u2265", "le": "\u2264", "ge": "\u2265",
    "notin": "\u2209", "bmod": "mod", "varnothing": "\u2205", "square": "\u25a1", "dots": "\u2026",
    "blacksquare": "\u25a0", "Pr": "Pr",
    "dotsc": "\u2026", "dotsb": "\u22ef", "checkmark": "\u2713",
}  # fmt: skip
#: Commands that change only the look, and those before a delimiter, of which a dot is none.
_NOTHING = frozenset(
    ("displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "nonumber", "notag")
)
_SIZED = frozenset((
    "left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr",
    "biggl", "biggr", "Biggl", "Biggr", "bigm",
))  # fmt: skip
_SPACES = {",": " ", ";": " ", ":": " ", " ": " ", "!": "", "/": ""}
_ESCAPED = {**dict(zip("{}%$&#_", "{}%$&#_", strict=True)), "|": "\u2016"}
_PLAIN = frozenset(("text", "mathrm", "textrm", "operatorname", "textit", "mathit", "textnormal"))
_ACCENTS = {
    "hat": "\u0302", "widehat": "\u0302", "bar": "\u0304", "overline": "\u0305", "vec": "\u20d7",
    "tilde": "\u0303", "widetilde": "\u0303", "dot": "\u0307", "ddot": "\u0308",
    "underline": "\u0332",
}  # fmt: skip
_ALPHABETS = {
    "mathbb": "DOUBLE-STRUCK", "mathcal": "SCRIPT", "mathscr": "SCRIPT", "mathfrak": "FRAKTUR",
    "mathbf": "BOLD", "boldsymbol": "BOLD", "textbf": "BOLD", "bm": "BOLD",
}  # fmt: skip
_FRACTIONS = frozenset(("frac", "dfrac", "tfrac", "cfrac"))
#: Environments of lines, whose columns are only for their alignment.
_LINES = frozenset(("aligned", "align", "align*", "gathered", "equation", "equation*", "split"))
_ROOTS = {"": "\u221a", "2": "\u221a", "3": "\u221b", "4": "\u221c"}
_SCRIPTED = "\u2032\u2070-\u209c\u00b2\u00b3\u00b9\u1d2c-\u1d6a\u0300-\u036f\u20d7"
_FACTOR = re.compile(rf"(?:\d+(?:\.\d+)?|[^\W\d_])[{_SCRIPTED}]*")
#: A letter or a digit that is no script.
_LETTER = re.compile(rf"(?![{_SCRIPTED}])\w")
_PRODUCT = re.compile(rf"[\w.{_SCRIPTED}]+")


class _Reader:
    """Reads the tokens of one formula."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def sequence(self, end: str = "", *, lines: bool = False) -> str:
        """The text up to the token `end`, which is taken, or to the end of the formula."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _NotUnicode
        atoms: list[_Atom] = []
        while (token := self._next()) != end:
            if not token:
                raise _NotUnicode
            if lines and token == "&":
                continue
            atoms.extend(self._atoms(token))
        self._depth -= 1
        return _joined(atoms)

    def _next(self) -> str:
        """The next token; empty at the end."""
        if self._at >= len(self._tokens):
            return ""
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, token: str) -> bool:
        """Whether the next token is this one, which is taken."""
        is_next = self._at < len(self._tokens) and self._tokens[self._at] == token
        self._at += is_next
        return is_next

    def _argument(self) -> str:
        """The next group or token as text."""
        while (token := self._next()).isspace():
            pass
        if token == "{":
            return self.sequence("}")
        if not token or token in "}^_&":
            raise _NotUnicode
        return _joined(list(self._atoms(token)))

    def _literal(self) -> str:
        """The text of the next group as it is written."""
        if self._next() != "{":
            raise _NotUnicode
        parts = []
        while (token := self._next()) != "}":
            if not token or token in "{$" or (token[0] == "\\" and token[1:] not in _SPACES):
                raise _NotUnicode
            parts.append(" " if token[0] == "\\" or token == "~" else token)
        return "".join(parts)

    def _atoms(self, token: str) -> Iterator[_Atom]:
        if token == "{":
            yield _Atom(self.sequence("}"))
        elif token in ("^", "_"):
            yield _Atom(_script(self._argument(), is_super=token == "^"))
        elif token.isspace() or token == "~":
            yield _Atom(" ", "space")
        elif token == "'":
            yield _Atom("\u2032")
        elif token in ("}", "&", "$", "%", "#"):
            raise _NotUnicode
        elif token[0] != "\\":
            yield _Atom("\u2212" if token == "-" else token)
        else:
            yield from self._command(token[1:])

    def _command(self, name: str) -> Iterator[_Atom]:
        if name in _SPACES:
            yield _Atom(_SPACES[name], "space")
        elif name == "\\":
            yield _Atom("\n", "space")
        elif name in _ESCAPED:
            yield _Atom(_ESCAPED[name])
        elif name in _NOTHING:
            return
        elif name in _SIZED:
            self._take(".")
        elif name in _PLAIN:
            yield _Atom(self._literal(), "word")
        elif name in _ALPHABETS:
            yield _Atom(_in_alphabet(self._argument(), _ALPHABETS[name]))
        elif name in _ACCENTS:
            yield _Atom(_accented(self._argument(), _ACCENTS[name]))
        elif name in _FRACTIONS:
            yield _fraction(self._argument(), self._argument())
        elif name == "sqrt":
            yield _Atom(self._root())
        elif name == "pmod":
            yield _Atom(f" (mod {self._argument()})")
        elif name == "begin":
            yield _Atom(self._environment())
        else:
            symbol = _symbol(name)
            yield _Atom(symbol, "word" if symbol[:1].isascii() and symbol.isalpha() else "text")

    def _root(self) -> str:
        index = ""
        if self._take("["):
            index = self.sequence("]")
        root = _ROOTS.get(index) or f"{_script(index, is_super=True)}\u221a"
        if root[0] == "^":
            raise _NotUnicode
        return root + _enclosed(self._argument(), _FACTOR)

    def _environment(self) -> str:
        name = self._literal()
        if name not in _LINES:
            raise _NotUnicode
        text = self.sequence("\\end", lines=True)
        if self._literal() != name:
            raise _NotUnicode
        return text


@cache
def _symbol(name: str) -> str:
    """The symbol of a command, or the name of a function. Raises _NotUnicode."""
    if name in _SYMBOLS:
        return _SYMBOLS[name]
    spec = _table().get_macro_spec(name)
    symbol = getattr(spec, "simplify_repl", None)
    if not isinstance(symbol, str) or not symbol.strip() or "%" in symbol or len(symbol) > 8:
        raise _NotUnicode
    return symbol


@cache
def _table() -> Any:
    from pylatexenc.latex2text import get_default_latex_context_db

    return get_default_latex_context_db()


def _joined(atoms: list[_Atom]) -> str:
    """The atoms as text: words apart from letters, and fractions in brackets beside factors."""
    text = ""
    for index, (part, kind) in enumerate(atoms):
        following = next((each.text for each in atoms[index + 1 :] if each.kind != "space"), "")
        before = text.rstrip(" ")
        if kind == "fraction" and (_is_factor(before[-1:]) or _opens_factor(following[:1])):
            part = f"({part})"
        if kind == "word" and (text[-1:].isalnum() or text[-1:] == ")"):
            text += " "
        if index and atoms[index - 1].kind == "word" and _LETTER.match(part):
            text += " "
        if text.endswith(" ") and (kind != "space" or part == " "):
            part = part.lstrip(" ")
        text += part
    return re.sub(r" *\n *", "\n", text)


def _is_factor(character: str) -> bool:
    return character.isalnum() or character in (")", "]", "/", "\u2032")


def _opens_factor(character: str) -> bool:
    return character.isalnum() or character in ("(", "[", "\u221a", "^", "/")


def _enclosed(text: str, alone: re.Pattern[str]) -> str:
    """`text` in brackets, unless it is of the form that needs none."""
    text = text.strip()
    return text if alone.fullmatch(text) else f"({text})"


def _fraction(top: str, bottom: str) -> _Atom:
    vulgar = _vulgar_fractions().get((top.strip(), bottom.strip()))
    if vulgar:
        return _Atom(vulgar)
    if not top.strip() or not bottom.strip():
        raise _NotUnicode
    return _Atom(f"{_enclosed(top, _PRODUCT)}/{_enclosed(bottom, _FACTOR)}", "fraction")


def _script(text: str, *, is_super: bool) -> str:
    """A superscript or a subscript; in brackets after its mark if Unicode lacks a character."""
    text = text.strip()
    if is_super and text in ("\u2218", "\u2032", "\u2032\u2032", "\u00b0"):
        return text.replace("\u2218", "\u00b0")
    table = _scripts("super" if is_super else "sub")
    small = [table.get(character, "") for character in text if character != " "]
    if text and all(small):
        return "".join(small)
    mark = "^" if is_super else "_"
    return f"{mark}{text}" if len(text) == 1 else f"{mark}({text})"


def _accented(text: str, accent: str) -> str:
    text = text.strip()
    if len(text) != 1:
        raise _NotUnicode
    return unicodedata.normalize("NFC", text + accent)


def _in_alphabet(text: str, alphabet: str) -> str:
    return "".join(_letter(character, alphabet) for character in text)


def _letter(character: str, alphabet: str) -> str:
    """A letter or a digit of a mathematical alphabet. Raises _NotUnicode."""
    if character in " ,":
        return character
    if character.isdecimal():
        name = unicodedata.name(character)
    elif character.isascii() and character.isalpha():
        name = f"{'CAPITAL' if character.isupper() else 'SMALL'} {character.upper()}"
    else:
        raise _NotUnicode
    for prefix in ("", "MATHEMATICAL ", "BLACK-LETTER "):
        style = "" if prefix.startswith("BLACK") else f"{alphabet} "
        try:
            found = unicodedata.lookup(f"{prefix}{style}{name}")
        except KeyError:
            continue
        if prefix != "BLACK-LETTER " or alphabet == "FRAKTUR":
            return found
    raise _NotUnicode


@cache
def _scripts(kind: str) -> dict[str, str]:
    """The small form of each character that Unicode decomposes as `<kind>`."""
    found: dict[str, str] = {}
    for code in (*range(0xB2, 0xBA), *range(0x1D2C, 0x1DC0), *range(0x2070, 0x209D), 0x2C7C):
        mark, _, origin = unicodedata.decomposition(chr(code)).partition(" ")
        if mark == f"<{kind}>" and " " not in origin:
            found.setdefault(chr(int(origin, 16)), chr(code))
    return {**found, "-": found["\u2212"]}


@cache
def _vulgar_fractions() -> dict[tuple[str, str], str]:
    """The characters of fractions by numerator and denominator."""
    found = {}
    for code in (*range(0xBC, 0xBF), *range(0x2150, 0x215F)):
        top, _, bottom = unicodedata.normalize("NFKC", chr(code)).partition("\u2044")
        if bottom:
            found[top, bottom] = chr(code)
    return found
