"""Paths and web addresses of images, videos and audio files in what a person types."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from mrs.media.audio_names import AUDIO_TYPES
from mrs.media.open_image import SUFFIXES
from mrs.media.video_names import VIDEO_TYPES
from mrs.request import IMAGE_MARK

_WEB = re.compile(r"https?://", re.IGNORECASE)
_WORD = re.compile(r"(?:\\[^\n]|\S)+")
_OPENED = re.compile(r"""[(\[{<]*(["'])""")
_CLOSED = re.compile(r"""["'](?=[\s.,;:!?)\]}>\u2026]|$)""")
_LONGEST_NAME, _MOST_OPENING = 4096, 8
_PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">", "\u201c": "\u201d", "\u2018": "\u2019"}
#: Characters special to a shell; a backslash before any other belongs to the path.
_ESCAPED = re.compile(r"\\( )" if os.name == "nt" else r"""\\([ ()\[\]{}'"&;!$*?<>|#~`\\])""")
_SPECIAL = re.compile(" " if os.name == "nt" else r"""[ ()\[\]{}'"&;!$*?<>|#`\\]""")
#: A word with these is a pattern or a piece of code, not a path.
_NO_PATH = re.compile(r"""(?<!\\)["'`*]|\]\(""")
_CLOSING = "\"'`\u201d\u2019)]}>"
_TRAILING = f".,;:!?\u2026{_CLOSING}"
#: What replaces a name: a line of names goes, a sentence keeps its end, other punctuation goes.
_TAIL = f"[{re.escape(_TRAILING)}]*"
_SOFT = f"[{re.escape(',;:' + _CLOSING)}]*"
_GAPS = (
    (re.compile(f"^[ \t]*(?:{IMAGE_MARK}{_TAIL}[ \t]*)+\n", re.MULTILINE), ""),
    (re.compile(f"(?<=\\w)[ \t]+{IMAGE_MARK}{_SOFT}([.!?\u2026]*){_TAIL}"), r"\1"),
    (re.compile(f"^{IMAGE_MARK}{_TAIL}[ \t]*", re.MULTILINE), ""),
    (re.compile(f"(?<![ \t])[ \t]*{IMAGE_MARK}{_TAIL}"), ""),
)


@dataclass(frozen=True)
class FoundImages:
    """`sources` are the images that a text names, in order; `rest` is the text without them.

    `missing` are names of files that are not there, which stay in the text.
    """

    rest: str
    sources: tuple[str, ...]
    missing: tuple[str, ...] = ()


def find_image_paths(
    text: str, known: Collection[str] = (), is_there: Callable[[str], bool] = lambda _: True
) -> FoundImages:
    """The paths, file:// and web addresses in `text` with a suffix of images, videos or audio.

    Paths with spaces are quoted or escaped. Quoted names in `known` need no such suffix. A path
    that `is_there` denies is a part of the text.
    """
    text = text.replace(IMAGE_MARK, "")
    pieces, sources, missing, at = [], [], [], 0
    for start, end, source in _spans(text, known):
        if source not in known and not is_there(source):
            missing.append(source)
            continue
        pieces += [text[at:start], IMAGE_MARK]
        sources.append(source)
        at = end
    rest = "".join((*pieces, text[at:]))
    if not sources:
        return FoundImages(rest, (), tuple(missing))
    for gap, filling in _GAPS:
        rest = gap.sub(filling, rest)
    return FoundImages(rest.strip(), tuple(sources), tuple(missing))


def spelled(source: str) -> str:
    """The name of a known image in a form that `find_image_paths` finds."""
    if list(_spans(source, ())) == [(0, len(source), source)]:
        return source
    quote = "'" if '"' in source else '"'
    return f"{quote}{source}{quote}"


@dataclass(frozen=True)
class IncompletePath:
    """The path that a person is typing: as typed, its meaning, and the quote it begins with."""

    typed: str
    name: str
    quote: str


def incomplete_path(text: str) -> IncompletePath:
    """The last word of `text`, which may be the beginning of a path."""
    for start in range(max(0, len(text) - _LONGEST_NAME), len(text)):
        is_begin = start == 0 or text[start - 1].isspace()
        if is_begin and text[start] in "\"'" and text[start] not in text[start + 1 :]:
            return IncompletePath(text[start:], text[start + 1 :], text[start])
    word = re.search(r"(?:\\[^\n]|[^\s\\])*$", text)
    typed = word[0] if word else ""
    return IncompletePath(typed, _ESCAPED.sub(r"\1", typed), "")


def completed(incomplete: IncompletePath, path: str, *, is_file: bool) -> str:
    """What a person would have typed to name `path`; the quote is closed after a file."""
    if incomplete.quote:
        return f"{incomplete.quote}{path}{incomplete.quote if is_file else ''}"
    return _SPECIAL.sub(r"\\\g<0>", path)


def _spans(text: str, known: Collection[str]) -> Iterator[tuple[int, int, str]]:
    """Where names begin and end, without punctuation, and what they name."""
    closed = {
        quote: [m.start() for m in _CLOSED.finditer(text) if m[0] == quote] for quote in "\"'"
    }
    at = 0
    while (word := _WORD.search(text, at)) is not None:
        start, at = word.span()
        if (opened := _OPENED.match(text, start)) and (ends := closed[opened[1]]):
            end = ends[min(bisect_left(ends, opened.end()), len(ends) - 1)]
            name = text[opened.end() : min(end, opened.end() + _LONGEST_NAME)]
            if "\n" not in name and (name in known or is_image_path(name)):
                at = end + 1
                yield start, at, name
                continue
        name = _bare_name(word[0])
        if is_image_path(name) and (_WEB.match(name) or not _NO_PATH.search(name)):
            end = start + len(word[0].rstrip(_TRAILING))
            yield start, end, name if _WEB.match(name) else _ESCAPED.sub(r"\1", name)


def _bare_name(word: str) -> str:
    """A word without the punctuation around it; a closed pair of brackets belongs to the word."""
    word = word.rstrip(_TRAILING)
    for _ in range(_MOST_OPENING):
        if not word or (word[0] not in _PAIRS and word[0] not in "\"'`"):
            break
        closing = _PAIRS.get(word[0])
        if closing is not None and word.count(closing) >= word.count(word[0]):
            break
        word = word[1:]
    return word


def is_image_path(name: str) -> bool:
    """Whether a path or a web address has a suffix of images, videos or audio files."""
    if _WEB.match(name):
        try:
            name = urlsplit(name).path
        except ValueError:
            return False
    stem, _, suffix = name.rpartition(".")
    suffixes = (*SUFFIXES, *VIDEO_TYPES, *AUDIO_TYPES)
    return suffix.lower() in suffixes and stem[-1:] not in ("", "/", "\\")
