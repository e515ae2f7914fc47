"""Nothing leaves the device of its input. torch's `meta` device refuses to meet another one."""

from __future__ import annotations

import pytest
import torch

from mrs.formats import FORMATS
from mrs.quantization.gguf import decode, encode, requantize
from mrs.quantization.gguf.codec import DECODERS, ENCODERS


def test_meta_refuses_other_devices() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device="meta") * torch.ones(3)


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_decode(name: str) -> None:
    kind = FORMATS[name]
    blocks = torch.empty(3, 2 * kind.block_bytes, dtype=torch.uint8, device="meta")
    decoded = decode(blocks, kind, torch.bfloat16)
    assert decoded.device.type == "meta"
    assert decoded.shape == (3, 2 * kind.block_elements)


@pytest.mark.few(9)
@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_encode(name: str) -> None:
    kind = FORMATS[name]
    numbers = torch.empty(3, 2 * kind.block_elements, dtype=torch.bfloat16, device="meta")
    encoded = encode(numbers, kind)
    assert encoded.device.type == "meta"
    assert encoded.shape == (3, 2 * kind.block_bytes)
    again = requantize(encoded, kind, FORMATS["Q8_0"])
    assert again.device.type == "meta"
    assert again.shape == (3, 2 * kind.block_elements // 32 * 34)
