"""Decoding is bit-exact with gguf-py, on random bytes and on blocks with extreme scales."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
from weight_samples import sample_weights

from mrs.errors import Unsupported
from mrs.formats import FORMATS
from mrs.quantization.gguf import decode, encode, grouped, requantize
from mrs.quantization.gguf.codec import DECODERS

#: Where the half-precision scales of a block lie (IQ1_M scatters its one over four words).
HALF_SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ1_S": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
}
EDGE_HALVES = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF,
    0x7C00, 0xFC00, 0x7E00, 0xFE01,
]  # fmt: skip
BLOCK_TYPES = sorted(set(DECODERS) - {"Q8_K", *grouped.DECODERS})


def reference(blocks: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def assert_same_bits(actual: torch.Tensor, expected: np.ndarray) -> None:
    got = actual.numpy()
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.int32)[~nan], expected.view(np.int32)[~nan])


def random_blocks(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    size = (rows, blocks * FORMATS[name].block_bytes)
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def edge_blocks(name: str) -> np.ndarray:
    """Every pair of extreme scales on top of all-zero, all-one and random bodies."""
    block_bytes = FORMATS[name].block_bytes
    bodies = [
        np.zeros(block_bytes, np.uint8),
        np.full(block_bytes, 0xFF, np.uint8),
        random_blocks(name, 1, 1, 7)[0],
    ]
    places = HALF_SCALES[name]
    blocks = []
    for body in bodies:
        for pair in np.ndindex(*[len(EDGE_HALVES)] * len(places)):
            block = body.copy()
            for place, index in zip(places, pair, strict=True):
                block[place : place + 2] = np.array([EDGE_HALVES[index]], "<u2").view(np.uint8)
            blocks.append(block)
    return np.stack(blocks)


def test_every_type_that_gguf_decodes_is_decoded() -> None:
    known = {kind.name for kind in gguf.quants._type_traits} - {"BF16"}
    assert known <= set(DECODERS)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_random_bytes(name: str) -> None:
    blocks = random_blocks(name, 67, 5, seed=1)
    assert_same_bits(decode(torch.from_numpy(blocks), FORMATS[name]), reference(blocks, name))


@pytest.mark.parametrize("name", sorted(HALF_SCALES))
def test_extreme_scales(name: str) -> None:
    blocks = edge_blocks(name)
    assert_same_bits(decode(torch.from_numpy(blocks), FORMATS[name]), reference(blocks, name))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_byte_of_4_bit_floats(name: str) -> None:
    blocks = random_blocks(name, 256, 1, seed=2)
    blocks[:, 0] = np.arange(256)
    assert_same_bits(decode(torch.from_numpy(blocks), FORMATS[name]), reference(blocks, name))


def test_scattered_scale_of_iq1_m() -> None:
    blocks = np.concatenate(
        [random_blocks("IQ1_M", len(EDGE_HALVES), 1, seed=3 + i) for i in (0, 1)]
    )
    for block, bits in zip(blocks, EDGE_HALVES * 2, strict=True):
        for word in range(4):
            low = block[49 + 2 * word] & 0x0F
            block[49 + 2 * word] = low | ((bits >> 4 * word & 0x0F) << 4)
    expected = reference(blocks, "IQ1_M")
    assert np.isnan(expected).any()
    assert_same_bits(decode(torch.from_numpy(blocks), FORMATS["IQ1_M"]), expected)


def test_q8_k_against_its_layout() -> None:
    layout = np.dtype([("d", "<f4"), ("q", "i1", 256), ("sums", "<i2", 16)])
    blocks = random_blocks("Q8_K", 40, 1, seed=4)
    fields = blocks.view(layout)[:, 0]
    with np.errstate(all="ignore"):
        expected = fields["d"][:, None] * fields["q"].astype(np.float32)
    assert_same_bits(decode(torch.from_numpy(blocks), FORMATS["Q8_K"]), expected)


@pytest.mark.parametrize(("name", "dtype"), [("F32", "<f4"), ("F16", "<f2"), ("F64", "<f8")])
def test_plain_floats_at_any_offset(name: str, dtype: str) -> None:
    numbers = np.random.default_rng(5).standard_normal((3, 8)).astype(dtype)
    shifted = torch.frombuffer(bytearray(b"\0" + numbers.tobytes()), dtype=torch.uint8)[1:]
    decoded = decode(shifted.view(3, -1), FORMATS[name])
    assert_same_bits(decoded, numbers.astype(np.float32))


def test_bf16() -> None:
    blocks = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(256, -1)
    assert_same_bits(decode(torch.from_numpy(blocks), FORMATS["BF16"]), reference(blocks, "BF16"))


@pytest.mark.parametrize("name", ["Q4_K", "IQ2_XXS"])
def test_more_than_one_chunk_and_outer_dimensions(name: str) -> None:
    blocks = random_blocks(name, 1030, 2, seed=6).reshape(2, 515, -1)
    decoded = decode(torch.from_numpy(blocks), FORMATS[name])
    assert_same_bits(decoded.flatten(0, 1), reference(blocks.reshape(1030, -1), name))


def test_target_type() -> None:
    blocks = random_blocks("Q6_K", 4, 2, seed=8)
    blocks[:, 209::210] &= 0x3F  # finite scales
    exact = decode(torch.from_numpy(blocks), FORMATS["Q6_K"])
    rounded = decode(torch.from_numpy(blocks), FORMATS["Q6_K"], torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded, exact.to(torch.bfloat16), rtol=0, atol=0)


def test_unknown_and_cut_rows() -> None:
    with pytest.raises(Unsupported, match="Q1_0"):
        decode(torch.zeros(1, 18, dtype=torch.uint8), FORMATS["Q1_0"])
    with pytest.raises(ValueError, match="not whole"):
        decode(torch.zeros(1, 19, dtype=torch.uint8), FORMATS["Q4_0"])


@pytest.mark.parametrize(("stored", "wanted"), [
    ("Q4_0", "Q8_0"), ("Q5_K", "Q4_0"), ("Q8_0", "Q4_K"), ("Q6_K", "Q3_K"), ("NVFP4", "Q8_0"),
    ("BF16", "Q4_K"), ("F32", "Q5_1"), ("F16", "Q6_K"),
])  # fmt: skip
def test_requantize_is_decode_then_encode(stored: str, wanted: str) -> None:
    weights = torch.from_numpy(sample_weights("gaussian", 600, 512))
    if stored == "NVFP4":
        blocks = torch.from_numpy(random_blocks(stored, 600, 8, seed=9))
    else:
        blocks = encode(weights, FORMATS[stored])
    expected = encode(decode(blocks, FORMATS[stored]), FORMATS[wanted])
    result = requantize(blocks.view(3, 200, -1), FORMATS[stored], FORMATS[wanted])
    assert torch.equal(result.flatten(0, 1), expected)


def test_requantize_refuses_cut_rows_and_unknown_formats() -> None:
    short = encode(torch.ones(2, 160), FORMATS["Q8_0"])
    with pytest.raises(ValueError, match="rows of 160"):
        requantize(short, FORMATS["Q8_0"], FORMATS["Q4_K"])
    with pytest.raises(Unsupported, match="IQ2_S"):
        requantize(short, FORMATS["Q8_0"], FORMATS["IQ2_S"])


def test_threads_write_what_inference_mode_made() -> None:
    blocks = torch.zeros(1 << 15, FORMATS["Q8_0"].block_bytes, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            assert not decode(blocks, FORMATS["Q8_0"]).any()
    finally:
        torch.set_num_threads(threads)
