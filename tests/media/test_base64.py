"""The base64 of data: URIs, which is decoded in pieces."""

from __future__ import annotations

import binascii
import random
from base64 import b64encode
from typing import Any

import pytest

from mrs.errors import NotReadable
from mrs.media import image_source
from mrs.media.image_source import read_source


def read(encoded: str) -> bytes:
    return read_source(f"data:image/png;base64,{encoded}", 2**26, 1.0)


@pytest.mark.parametrize("characters", [1, 3, 4, 7, 64])
def test_pieces_of_any_size_make_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    monkeypatch.setattr(image_source, "_PIECE_CHARACTERS", characters)
    chance = random.Random(characters)
    for size in range(40):
        content = chance.randbytes(size)
        encoded = b64encode(content).decode()
        assert read(encoded) == content
        spaced = "".join(each + chance.choice(["", "", " ", "\r\n"]) for each in encoded)
        assert read(f"{spaced} \n") == content


@pytest.mark.parametrize("characters", [1, 4, 5, 2**16])
@pytest.mark.parametrize("encoded", ["YWJj!", "YWJ", "YQ==YWJj", "YQ=", "=YQ=", "YWJjé", "Y Q"])
def test_damaged_base64_is_refused(
    monkeypatch: pytest.MonkeyPatch, characters: int, encoded: str
) -> None:
    monkeypatch.setattr(image_source, "_PIECE_CHARACTERS", characters)
    with pytest.raises(NotReadable, match="base64 is damaged"):
        read(encoded)


def test_no_call_decodes_much_of_a_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call keeps the interpreter until it returns."""
    content, decode, sizes = random.Random(0).randbytes(2**20), binascii.a2b_base64, []

    def decoded(text: str, **how: Any) -> bytes:
        sizes.append(len(text))
        return decode(text, **how)

    monkeypatch.setattr(binascii, "a2b_base64", decoded)
    assert read(b64encode(content).decode()) == content
    assert max(sizes) <= image_source._PIECE_CHARACTERS + 3
