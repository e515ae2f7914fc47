"""Section 7 of the man pages: the Markdown of the manual in roff.

What the manual uses of Markdown is written here; anything else is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from mrs_cli.docs.roff import escaped, page, references

#: Pages that are only lists of links to the others.
INDEX = "index"
_COLUMNS = 71  # of a terminal with 80, less what `man` leaves at both sides
_GAP = 3  # between two columns of a table
_LEGIBLE = 30  # a column that is wrapped has no less
_FONTS = {"strong": "B", "em": "I", "code_inline": "B"}
_ALIGNMENTS = {"text-align:right": "r", "text-align:center": "c"}


def manual_pages(folder: Path) -> dict[str, str]:
    """A page mrs-NAME for each NAME.md of the folder, by its name."""
    sources = {path.stem: path for path in sorted(folder.glob("*.md")) if path.stem != INDEX}
    return {f"mrs-{name}": _manual_page(path, set(sources)) for name, path in sources.items()}


def _manual_page(source: Path, pages: set[str]) -> str:
    parser = MarkdownIt("commonmark").enable("table")
    root = SyntaxTreeNode(parser.parse(source.read_text(encoding="utf-8")))
    title, *blocks = root.children
    heading = "DESCRIPTION"
    sections = {heading: ""}
    for block in blocks:
        if block.type == "heading" and block.tag == "h2":
            heading = _inline(block.children[0])
            sections.setdefault(heading, "")
        else:
            sections[heading] += _block(block)
    bodies = {heading: body.rstrip("\n") for heading, body in sections.items() if body}
    linked = dict.fromkeys(f"mrs-{name}" for name in map(_page_of, root.walk()) if name in pages)
    linked.pop(f"mrs-{source.stem}", None)
    bodies["SEE ALSO"] = references([("mrs", 1), *((name, 7) for name in linked)])
    words = _plain(title)
    summary = words if words[1:2].isupper() else words[:1].lower() + words[1:]
    text = page(f"mrs-{source.stem}", 7, "Manual of mrs", summary, bodies)
    text = re.sub(r"^(\.S[HS] .*\n)\.PP\n", r"\1", text, flags=re.MULTILINE)
    return f"'\\\" t\n{text}" if "\n.TS\n" in text else text  # asks `man` for tbl


def _block(node: SyntaxTreeNode) -> str:
    """A block as lines, the last of which ends."""
    match node.type:
        case "heading" if node.tag == "h3":
            return f".SS {_inline(node.children[0])}\n"
        case "paragraph":
            text = _inline(node.children[0])
            return f".PP\n{text}\n" if text else ""
        case "fence":
            return f".PP\n.RS 4\n.EX\n{escaped(node.content)}.EE\n.RE\n"
        case "blockquote":
            return f".RS 4\n{_blocks(node.children)}.RE\n"
        case "bullet_list":
            return "".join(_item("\\(bu", 2, item) for item in node.children)
        case "ordered_list":
            return "".join(_item(f"{n}.", 4, item) for n, item in enumerate(node.children, 1))
        case "table":
            return _table([row for part in node.children for row in part.children])
        case "html_block" if node.content.startswith("<!--"):
            return ""
    raise ValueError(f"no roff for {node.type} {node.tag} of Markdown: {node.content!r}")


def _blocks(nodes: Iterable[SyntaxTreeNode]) -> str:
    return "".join(map(_block, nodes))


def _item(mark: str, indent: int, item: SyntaxTreeNode) -> str:
    first, *rest = item.children
    text = _block(first).removeprefix(".PP\n")
    below = f".RS {indent}\n{_blocks(rest)}.RE\n" if rest else ""
    return f".IP {mark} {indent}\n{text}{below}"


def _inline(node: SyntaxTreeNode) -> str:
    """Text with fonts; where the source has a new line, so has the result."""
    match node.type:
        case "inline":
            return "".join(map(_inline, node.children)).strip()
        case "text":
            return escaped(node.content)
        case "softbreak":
            return "\n"
        case "strong" | "em":
            return f"\\f{_FONTS[node.type]}{''.join(map(_inline, node.children))}\\fR"
        case "code_inline":
            return f"\\f{_FONTS[node.type]}{escaped(node.content)}\\fR"
        case "link":
            return "".join(map(_inline, node.children)) + _target(node)
        case "image":
            return ""  # no terminal shows it
    raise ValueError(f"no roff for {node.type} of Markdown: {node.content!r}")


def _target(link: SyntaxTreeNode) -> str:
    """Where a link leads, in parentheses: a page or an address. The text names what else it is."""
    address, name = str(link.attrs["href"]), _page_of(link)
    if name:
        return f" (\\fB{escaped(f'mrs-{name}')}\\fR(7))"
    return f" ({escaped(address)})" if "://" in address else ""


def _page_of(node: SyntaxTreeNode) -> str | None:
    """The page of the manual that a node leads to, if it is a link to one."""
    found = re.match(r"([\w-]+)\.md(#|$)", str(node.attrs["href"])) if node.type == "link" else None
    return found[1] if found else None


def _plain(node: SyntaxTreeNode) -> str:
    """The text as a reader sees it, to be counted."""
    if node.type == "softbreak":
        return " "
    return "".join(map(_plain, node.children)) if node.children else node.content


def _table(rows: list[SyntaxTreeNode]) -> str:
    """A table for tbl, if a terminal has room for it; else a list."""
    cells = [[cell.children[0] for cell in row.children] for row in rows]
    words = [" ".join(map(_plain, column)).split() for column in zip(*cells, strict=True)]
    widths = [max(map(len, map(_plain, column))) for column in zip(*cells, strict=True)]
    room = _COLUMNS - _GAP * (len(widths) - 1) - sum(widths)
    widest = max(range(len(widths)), key=widths.__getitem__)
    if room >= 0:
        return _tbl(rows[0], cells, None)
    if room + widths[widest] >= max(_LEGIBLE, *map(len, words[widest])):
        return _tbl(rows[0], cells, widest)
    return _rows_as_list(cells)


def _tbl(head: SyntaxTreeNode, cells: list[list[SyntaxTreeNode]], wrapped: int | None) -> str:
    kinds = [_ALIGNMENTS.get(str(cell.attrs.get("style")), "l") for cell in head.children]
    if wrapped is not None:
        kinds[wrapped] = "lx"
    lines = (
        "\t".join(
            f"T{{\n{_inline(each)}\nT}}" if n == wrapped else _inline(each) for n, each in row
        )
        for row in map(enumerate, cells)
    )
    heads = " ".join(f"{kind}b" for kind in kinds)
    return "\n".join((".PP", ".TS", heads, f"{' '.join(kinds)}.", *lines, ".TE", ""))


def _rows_as_list(cells: list[list[SyntaxTreeNode]]) -> str:
    """Rows as terms, each with what it has in the other columns."""
    (_, *titles), *rows = cells
    items = []
    for first, *others in rows:
        named = [
            f"{_inline(title)}: {_inline(each)}" if len(titles) > 1 else _inline(each)
            for title, each in zip(titles, others, strict=True)
            if each.children
        ]
        items.append(f".TP\n{_inline(first)}\n" + "\n.br\n".join(named) + "\n")
    return "".join(items)
