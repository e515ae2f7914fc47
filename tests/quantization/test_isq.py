"""What `--isq` means, and which tensor gets which format."""

from __future__ import annotations

import pytest

from mrs.errors import UsageError
from mrs.formats import FORMATS
from mrs.quantization.isq import isq_format, parse_isq

BF16 = FORMATS["BF16"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("q4_0", "Q4_0"), ("q4_1", "Q4_1"), ("q5_0", "Q5_0"), ("q5_1", "Q5_1"), ("q8_0", "Q8_0"),
        ("q2k", "Q2_K"), ("q3k", "Q3_K"), ("q4k", "Q4_K"), ("q5k", "Q5_K"), ("q6k", "Q6_K"),
        ("2", "Q2_K"), ("3", "Q3_K"), ("4", "Q4_K"), ("5", "Q5_K"), ("6", "Q6_K"), ("8", "Q8_0"),
        ("afq2", "INT2_64"), ("afq3", "INT3_64"), ("afq4", "INT4_64"), ("afq8", "INT8_64"),
        ("hqq4", "INT4_64"), ("HQQ8", "INT8_64"), ("fp8", "FP8_128"), ("mxfp4", "MXFP4"),
        ("afq6", "Q6_K"), ("q8_1", "Q8_0"), ("q8k", "Q8_0"), ("f8q8", "Q8_0"),
        ("Q4_K_M", "Q4_K"), ("q3_k_l", "Q3_K"), ("Q6_K", "Q6_K"), ("Q4K", "Q4_K"),
        ("Q8_0", "Q8_0"), ("q6K", "Q6_K"),
    ],
)  # fmt: skip
def test_names_and_bits(text: str, name: str) -> None:
    assert parse_isq(text) is FORMATS[name]


@pytest.mark.parametrize("text", ["", "7", "1", "q4", "q4_k_x", "gptq", "4bits", "hqq"])
def test_unknown_values_list_the_choices(text: str) -> None:
    with pytest.raises(UsageError, match=r"q4_0.*q6k.*8"):
        parse_isq(text)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("2", "Q6_K"), ("3", "Q6_K"), ("4", "Q6_K"), ("q4_0", "Q6_K"), ("q4_1", "Q6_K"),
        ("afq4", "Q6_K"), ("mxfp4", "Q6_K"), ("fp8", "Q8_0"), ("hqq8", "Q8_0"),
        ("5", "Q8_0"), ("q5_0", "Q8_0"), ("q5_1", "Q8_0"), ("6", "Q8_0"), ("8", "Q8_0"),
    ],
)  # fmt: skip
def test_embedding_and_head_keep_one_step_more(name: str, kept: str) -> None:
    for role in ("embedding", "head"):
        assert isq_format(role, (1000, 512), parse_isq(name), BF16) == (FORMATS[kept], None)


@pytest.mark.parametrize("stored", ["BF16", "F32", "F16"])
def test_vectors_stay(stored: str) -> None:
    kept = isq_format("vector", (512,), FORMATS["Q4_K"], FORMATS[stored])
    assert kept == (FORMATS[stored], None)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Q2_K", "Q4_0"), ("Q3_K", "Q4_0"), ("Q4_K", "Q5_0"), ("Q5_K", "Q8_0"), ("Q6_K", "Q8_0"),
        ("INT4_64", "INT4_32"), ("FP8_128", "FP8_32"),
    ],
)  # fmt: skip
def test_rows_that_a_large_block_cuts(name: str, instead: str) -> None:
    chosen, reason = isq_format("matrix", (64, 160), FORMATS[name], BF16)
    assert chosen is FORMATS[instead]
    assert chosen.bits_per_weight > FORMATS[name].bits_per_weight
    assert reason is not None
    assert "rows of 160" in reason
    assert instead in reason


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q8_0"])
def test_rows_that_every_block_cuts(name: str) -> None:
    chosen, reason = isq_format("matrix", (8, 64, 100), FORMATS[name], BF16)
    assert chosen is BF16
    assert reason is not None
    assert "left as BF16" in reason


def test_what_is_already_smaller_stays() -> None:
    for stored in ("Q4_K", "Q3_K", "IQ4_NL", "MXFP4"):
        chosen, reason = isq_format("matrix", (64, 512), FORMATS["Q4_K"], FORMATS[stored])
        assert chosen is FORMATS[stored]
        assert (reason is None) == (stored == "Q4_K")
    assert isq_format("matrix", (64, 512), FORMATS["Q4_K"], FORMATS["Q6_K"]) == (
        FORMATS["Q4_K"],
        None,
    )


def test_every_choice_divides_its_rows() -> None:
    for bits in "234568":
        for row in range(32, 1025, 8):
            for role in ("matrix", "embedding", "head"):
                chosen, _ = isq_format(role, (4, row), parse_isq(bits), BF16)
                assert chosen.size_bytes((4, row)) * 8 == 4 * row * chosen.bits_per_weight
