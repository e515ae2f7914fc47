"""Which words of a message are images, and what is left of the message."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrs.request import IMAGE_MARK
from mrs_cli.chat.image_paths import find_image_paths, spelled

FOUND = [
    ("cat.png", ["cat.png"], ""),
    ("cat.png what is this?", ["cat.png"], "what is this?"),
    ("What is in cat.png?", ["cat.png"], "What is in?"),
    ("What is in cat.png", ["cat.png"], "What is in"),
    ("Compare a.jpg with b.JPEG, please.", ["a.jpg", "b.JPEG"], "Compare with please."),
    (
        "Look: a.gif, b.bmp; c.webp!",
        ["a.gif", "b.bmp", "c.webp"],
        "Look:",
    ),
    ("cat.png. It is mine.", ["cat.png"], "It is mine."),
    ("one\ncat.png\ntwo", ["cat.png"], "one\ntwo"),
    ("one\ncat.png two", ["cat.png"], "one\ntwo"),
    ("one\n\n  a.png b.png\n\ntwo", ["a.png", "b.png"], "one\n\n\ntwo"),
    ("a.png b.png\nwhich is older?", ["a.png", "b.png"], "which is older?"),
    ("see (cat.png) here", ["cat.png"], "see here"),
    ("~/my/cat.png ./a/../b.png /c/d.PNG", ["~/my/cat.png", "./a/../b.png", "/c/d.PNG"], ""),
    ("'my cat.png' is nice", ["my cat.png"], "is nice"),
    ("is \"my 'old' cat.png\", nice?", ["my 'old' cat.png"], "is nice?"),
    ('("my cat.png") `dog.png` \u201cfox.png\u201d', ["my cat.png", "dog.png", "fox.png"], ""),
    (r"my\ old\ cat\ \(1\).png now", ["my old cat (1).png"], "now"),
    ("cat(1).png (2).png", ["cat(1).png", "(2).png"], ""),
    ("what's in cat.png and dog's?", ["cat.png"], "what's in and dog's?"),
    ("file:///tmp/a%20b.png", ["file:///tmp/a%20b.png"], ""),
    (
        "http://x.y/a.png and HTTPS://x.y/b.JPG?w=1&h=2#c.",
        ["http://x.y/a.png", "HTTPS://x.y/b.JPG?w=1&h=2#c"],
        "and.",
    ),
    ("https://x.y/it's*a'cat.png", ["https://x.y/it's*a'cat.png"], ""),
    ("<https://x.y/a.png>", ["https://x.y/a.png"], ""),
    ("кот.png 猫.webp", ["кот.png", "猫.webp"], ""),
    ("a\u00a0b.png", ["b.png"], "a"),
]
TEXTS = [
    "",
    "  spaces \n stay ",
    "no image here",
    ".png files and png files",
    "convert *.png to a.tiff",
    "src/.png /.jpg",
    "cat.pngx cat.png.txt cat_png",
    "plt.savefig(\"out.png\") open('out.png') ![cat](cat.png)",
    "cat.png's background",
    "https://x.png http://[/a.png",
    "'",
    '"unclosed',
    "\\",
]


@pytest.mark.parametrize(("text", "sources", "rest"), FOUND)
def test_pictures(text, sources, rest):
    if os.name == "nt" and "\\(" in text:
        pytest.skip("there a backslash is no escape")
    found = find_image_paths(text)
    assert (list(found.sources), found.rest) == (sources, rest)


@pytest.mark.parametrize("text", TEXTS)
def test_text_stays_as_it_is(text):
    assert find_image_paths(text).rest == text
    assert not find_image_paths(text).sources


def test_marks_are_not_typed():
    assert find_image_paths(f"a{IMAGE_MARK}b").rest == "ab"
    assert find_image_paths(f"a{IMAGE_MARK}.png b") == find_image_paths("a.png b")


@given(st.text(alphabet="ab \\'\"()[].,/:pngjhts\n\ufffc`<>*~", max_size=40))
def test_every_text_is_read(text):
    found = find_image_paths(text)
    assert IMAGE_MARK not in found.rest
    assert bool(found.sources) or found.rest == text.replace(IMAGE_MARK, "")


@given(st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()))
def test_a_known_name_is_found_again(name):
    name = name.replace(IMAGE_MARK, "") or "x"
    if "'" in name and '"' in name:
        name = name.replace('"', "")
    found = find_image_paths(f"{spelled(name)} and more", known=[name])
    assert found.sources == (name,)
    assert found.rest == "and more"
