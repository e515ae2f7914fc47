"""Blocks of a decode step in Triton against float64, in Triton's interpreter.

`test_triton.py` runs this file with `TRITON_INTERPRET=1`, which must be set before Triton is
imported.
"""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks, reference_values
from torch import Tensor
from triton_attention_in_interpreter import products_of_bf16
from triton_in_interpreter import in_planes

from mrs.kernels.paged import PagedKV
from mrs.kernels.rotate import rotate
from mrs.kernels.triton import decode_blocks, decode_check
from mrs.kernels.triton.bit_planes import PlaneLayout
from mrs.kernels.triton.decode_blocks import GpuWeight, HeadShape, RmsNorm
from mrs.kernels.triton.self_test import LAYOUTS

CHANCE = torch.Generator().manual_seed(2)
EPS = 1e-5


def random(*size: int) -> Tensor:
    return torch.randn(size, generator=CHANCE)


def weight(name: str, rows: int, columns: int) -> tuple[GpuWeight, Tensor]:
    """A matrix and its values in float64."""
    if name == "F32":
        values = random(rows, columns)
        return GpuWeight.of(values), values.double()
    blocks = random_blocks(name, rows, columns)
    return GpuWeight.of(in_planes(name, blocks)), reference_values(name, blocks).double()


def normed(x: Tensor, norm: RmsNorm) -> Tensor:
    x = x.double()
    return x / (x.square().mean(1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()


def error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("names", "rows", "columns", "tokens"),
    [
        (("F32",), (5,), 90, 1),
        (("Q4_K",), (3,), 1280, 2),
        (("Q8_0", "F32"), (5, 3), 64, 3),
        (("Q4_K", "Q4_K", "Q6_K"), (7, 2, 3), 256, 1),
        (("F32", "F32", "F32"), (8, 2, 2), 1056, 8),
    ],
)
def test_joined_products(
    names: tuple[str, ...], rows: tuple[int, ...], columns: int, tokens: int
) -> None:
    made = [weight(name, count, columns) for name, count in zip(names, rows, strict=True)]
    weights, values = [each[0] for each in made], [each[1] for each in made]
    x, norm = random(tokens, columns), RmsNorm(random(columns), EPS)
    bias, added = random(sum(rows)), random(tokens, sum(rows))
    joined = torch.cat(values).T
    plain = decode_blocks.launch_joined_products(x, weights)
    assert error(plain, x.double() @ joined) < 1e-5
    out = decode_blocks.launch_joined_products(x, weights, norm=norm, bias=bias, added=added)
    assert error(out, normed(x, norm) @ joined + bias + added) < 1e-5


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "sigmoid", "quick_gelu"])
@pytest.mark.parametrize(("gate", "up"), [("F32", "F32"), ("Q4_K", "Q6_K")])
def test_gated_products(activation: str, gate: str, up: str) -> None:
    (gates, gate_values), (ups, up_values) = weight(gate, 5, 256), weight(up, 5, 256)
    x, norm = random(2, 256) * 0.2, RmsNorm(random(256) * 0.1, EPS)
    inner = normed(x, norm) @ gate_values.T
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "sigmoid": torch.sigmoid,
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    }
    expected = functions[activation](inner) * (normed(x, norm) @ up_values.T)
    assert (
        error(decode_blocks.launch_gated_products(x, norm, gates, ups, activation), expected) < 1e-5
    )


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs"), [(16, 8), (24, 8)])
def test_rotates_and_writes(has_norms: bool, interleaved: bool, dim: int, pairs: int) -> None:
    tokens, heads, kv_heads = 3, 4, 2
    norms = random(2, dim) if has_norms else None
    shape = HeadShape(heads, kv_heads, dim, interleaved, norms, EPS)
    kv = PagedKV(
        kv_heads, dim, dim, block_tokens=8, dtype=torch.float16, device=torch.device("cpu")
    )
    kv.resize(4)
    qkv, slots = random(tokens, (heads + 2 * kv_heads) * dim), torch.tensor([9, 31, 2])
    qkv[0, -1], qkv[0, -2] = 1e6, float("nan")  # more than the cache's type has
    angles = random(tokens, pairs)
    cos, sin = angles.cos(), angles.sin()
    found = decode_blocks.launch_rotate_and_write(qkv, (cos, sin), shape, slots, kv)
    q, k, v = qkv.view(tokens, -1, dim).split([heads, kv_heads, kv_heads], 1)
    if norms is not None:
        q, k = (
            normed(x.reshape(-1, dim), RmsNorm(n, EPS)).view(x.shape).float()
            for x, n in zip((q, k), norms, strict=True)
        )
    q, k = (rotate(x, cos, sin, interleaved=interleaved) for x in (q, k))
    expected = PagedKV(kv_heads, dim, dim, block_tokens=8, dtype=torch.float16, device=kv.device)
    expected.resize(4)
    expected.write(slots, (k, v))
    assert error(found, q.double()) < 1e-5
    blocks, offsets = slots // 8, slots % 8
    for mine, theirs in zip(kv.tensors, expected.tensors, strict=True):
        difference = mine[blocks, :, offsets].float() - theirs[blocks, :, offsets].float()
        assert difference.nan_to_num().abs().max() < 4e-3
    assert kv.values[1, 1, 1, -1] == torch.finfo(torch.float16).max
    assert kv.values[1, 1, 1, -2].isnan()


def test_writes_floats_of_8_bits() -> None:
    """To the bit what torch rounds to: between all neighbours, ties, what is too large, and NaN."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    few = torch.tensor([1e-30, 460.0, 1e6, float("inf"), float("nan")])
    values = torch.cat([codes, ties, ties * 0.999, ties * 1.001, few])
    values = torch.cat([values, -values, torch.zeros(len(values) * -2 % 16)]).view(-1, 1, 16)
    slots = torch.arange(len(values))
    made = []
    for _ in range(2):
        kv = PagedKV(
            1, 16, 16, block_tokens=64, dtype=torch.float8_e4m3fn, device=torch.device("cpu")
        )
        kv.resize(2)
        made.append(kv)
    qkv = values.expand(-1, 3, -1).reshape(len(values), -1)
    angles = torch.ones(len(values), 8), torch.zeros(len(values), 8)
    shape = HeadShape(1, 1, 16, interleaved=False)
    decode_blocks.launch_rotate_and_write(qkv, angles, shape, slots, made[0])
    made[1].write(slots, (values, values))
    found, expected = (kv.values.view(torch.uint8).view(-1, 16)[slots] for kv in made)
    is_number = ~expected.view(torch.float8_e4m3fn).float().isnan()
    assert torch.equal(found[is_number], expected[is_number])
    assert (found[~is_number] & 0x7F == 0x7F).all()
    assert len(found.unique()) >= 253


@pytest.mark.parametrize("names", [("F32", "F32", "F32"), ("Q4_K", "Q4_K", "Q6_K")])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs"), [(16, 8), (24, 8)])
def test_projects_heads(names: tuple[str, ...], interleaved: bool, dim: int, pairs: int) -> None:
    """One launch does what products, rotation and writing do one after another."""
    shape = HeadShape(1, 1, dim, interleaved)
    rows = (dim, dim, dim)
    weights = [weight(name, count, 256)[0] for name, count in zip(names, rows, strict=True)]
    x, norm, bias = random(3, 256), RmsNorm(random(256), EPS), random(3 * dim)
    cos, sin = (each(random(3, pairs)) for each in (torch.cos, torch.sin))
    slots, caches = torch.tensor([9, 31, 2]), []
    for _ in range(2):
        kv = PagedKV(1, dim, dim, block_tokens=8, dtype=torch.float32, device=torch.device("cpu"))
        kv.resize(4)
        caches.append(kv)
    found = decode_blocks.launch_project_heads(
        x, norm, weights, bias, (cos, sin), shape, slots, caches[0]
    )
    qkv = decode_blocks.launch_joined_products(x, weights, norm=norm, bias=bias)
    expected = decode_blocks.launch_rotate_and_write(qkv, (cos, sin), shape, slots, caches[1])
    assert error(found, expected.double()) < 1e-5
    blocks, offsets = slots // 8, slots % 8
    for mine, theirs in zip(caches[0].tensors, caches[1].tensors, strict=True):
        assert error(mine[blocks, :, offsets], theirs[blocks, :, offsets].double()) < 1e-5


@pytest.mark.usefixtures(products_of_bf16.__name__)
@pytest.mark.parametrize("layout", [None, LAYOUTS[0]])
def test_the_check_before_use(layout: PlaneLayout | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_check, "_WIDTHS", (32,))  # the interpreter is slow
    monkeypatch.setattr(decode_check, "_DIM", 16)
    cpu = torch.device("cpu")
    assert decode_check.decode_error(cpu, layout) < decode_check.LARGEST_ERROR
    assert decode_check.expert_error(cpu, layout) < decode_check.LARGEST_ERROR
