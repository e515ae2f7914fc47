"""The small steps of a decoder against their formulas in float64, natively and with torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mrs.kernels.attention_backend import attention_backend
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.cpu import elementwise
from mrs.kernels.nonlinearities import gated
from mrs.kernels.norms import rms_norm
from mrs.kernels.paged import AttentionBatch, PagedKV
from mrs.kernels.rotate import rotate

pytestmark = pytest.mark.usefixtures("any_path")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_near(result: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert result.shape == expected.shape
    assert float((result.double() - expected).abs().max()) < tolerance


def cached(k: Tensor, v: Tensor, block: int) -> PagedKV:
    """A layer's cache that holds k (KV, S, D) and v in blocks in reverse order."""
    kv = PagedKV(len(k), k.shape[2], v.shape[2], block_tokens=block, dtype=k.dtype, device=k.device)
    count = -(-k.shape[1] // block)
    kv.resize(count)
    tokens = torch.arange(k.shape[1])
    slots = (count - 1 - tokens // block) * block + tokens % block
    attention_backend(kv).write(kv, batch_of([(slots, len(slots))], block), *turned(k, v))
    return kv


def turned(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(0, 1).float() for x in tensors]


def batch_of(
    sequences: list[tuple[Tensor, int]], block: int, ends: Tensor | None = None
) -> AttentionBatch:
    """Sequences by the slots of all their tokens, and how many of these are new."""
    tables = [slots[::block] // block for slots, _ in sequences]
    counts = torch.tensor([0, *(new for _, new in sequences)])
    return AttentionBatch(
        counts.cumsum(0).int(),
        torch.tensor([len(slots) for slots, _ in sequences], dtype=torch.int32),
        torch.nn.utils.rnn.pad_sequence(tables, batch_first=True).int(),
        torch.cat([slots[-new:] for slots, new in sequences]),
        ends,
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: AttentionOptions,
    *,
    block: int = 16,
    attention_ends: Tensor | None = None,
) -> Tensor:
    """Attention of the last tokens of one sequence, through a cache of blocks."""
    kv = cached(k, v, block)
    tokens = torch.arange(k.shape[1])
    slots = (len(kv.keys) - 1 - tokens // block) * block + tokens % block
    batch = batch_of([(slots, len(q))], block, attention_ends)
    return attention_backend(kv).attend(q, kv, batch, options)


def test_torch_is_used_only_where_asked(any_path: str) -> None:
    assert (elementwise.library_for(normal(1)) is None) == (any_path == "torch")


@pytest.mark.parametrize("size", [1, 48, 2048])
@pytest.mark.parametrize("rows", [1, 5])
def test_rms_norm(rows: int, size: int) -> None:
    x, weight, eps = normal(rows, size), normal(size, seed=1), 0.1  # large, so that it is seen
    wide = x.double()
    factor = (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    assert_near(rms_norm(x, weight, eps), wide / factor * weight.double())
    assert_near(rms_norm(x.T.contiguous().T, weight, eps), wide / factor * weight.double())


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(activation: str) -> None:
    x, up = torch.cat((normal(2995) * 4, torch.tensor([-200.0, -90, 0, 90, 200]))), normal(3000)
    wide = x.double()
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    expected = {
        "silu": wide / (1 + torch.exp(-wide)),
        "gelu": wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2))),
        "gelu_tanh": 0.5 * wide * (1 + tanh),
    }[activation] * up.double()
    assert_near(gated(activation, x.clone(), up), expected, 2e-4)
    near = wide.abs() < 20
    assert_near(gated(activation, x.clone(), up)[near], expected[near])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [3, 16, 32])
def test_rotates_pairs(interleaved: bool, pairs: int) -> None:
    x, angles = normal(5, 3, 64), normal(5, pairs, seed=1)
    result = rotate(x, angles.cos(), angles.sin(), interleaved=interleaved)
    places = torch.arange(2 * pairs).view(pairs, 2) if interleaved else None
    first = places[:, 0] if places is not None else torch.arange(pairs)
    second = places[:, 1] if places is not None else torch.arange(pairs) + pairs
    turned = torch.complex(x[..., first].double(), x[..., second].double())
    turned = turned * torch.polar(torch.ones(1, dtype=torch.float64), angles.double())[:, None]
    expected = x.double().clone()
    expected[..., first], expected[..., second] = turned.real, turned.imag
    assert_near(result, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (7, 1), (12, 2)])
@pytest.mark.parametrize("options", ["plain", "window", "softcap", "sinks", "all"])
@pytest.mark.parametrize(("tokens", "keys"), [(1, 37), (20, 37), (33, 150)])
def test_attends_to_a_cache(
    dtype: torch.dtype, heads: int, kv_heads: int, options: str, tokens: int, keys: int
) -> None:
    dim, value_dim = 64, 32
    q = normal(tokens, heads, dim) * 3
    k = normal(kv_heads, keys + 13, dim, seed=1).to(dtype)[:, :keys]
    v = normal(kv_heads, keys + 13, value_dim, seed=2).to(dtype)[:, :keys]
    window = 11 if options in ("window", "all") else None
    softcap = 5.0 if options in ("softcap", "all") else None
    sinks = normal(heads, seed=3) if options in ("sinks", "all") else None
    result = attend(q, k, v, AttentionOptions(0.2, window, softcap, sinks))
    seen = (keys - tokens + 1 + token for token in range(tokens))
    expected = torch.cat(
        [
            attention_in_double(q[i : i + 1], k[:, :end], v[:, :end], 0.2, window, softcap, sinks)
            for i, end in enumerate(seen)
        ]
    )
    # torch rounds queries and weights to the cache's type; the library keeps float32.
    exact = elementwise.library_for(q) is not None or dtype == torch.float32
    assert_near(result, expected, 1e-5 if exact else 0.1)


@pytest.mark.parametrize("options", ["plain", "window", "softcap", "sinks", "all"])
def test_attends_to_tokens_behind_itself(options: str) -> None:
    tokens, keys, heads = 20, 37, 6
    q, k, v = (
        normal(tokens, heads, 64) * 3,
        normal(2, keys, 64, seed=1),
        normal(2, keys, 32, seed=2),
    )
    window = 11 if options in ("window", "all") else None
    softcap = 5.0 if options in ("softcap", "all") else None
    sinks = normal(heads, seed=3) if options in ("sinks", "all") else None
    own = torch.arange(keys - tokens, keys)
    last = own.clone()
    last[3:15], last[17:] = own[14], own[19]
    result = attend(q, k, v, AttentionOptions(0.2, window, softcap, sinks), attention_ends=last)
    expected = []
    for i, (place, end) in enumerate(zip(own.tolist(), last.tolist(), strict=True)):
        seen, behind = slice(0, end + 1), end - place
        stretch = None if window is None else window + behind
        expected.append(
            attention_in_double(q[i : i + 1], k[:, seen], v[:, seen], 0.2, stretch, softcap, sinks)
        )
    assert_near(result, torch.cat(expected))


def attention_in_double(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    group = q.shape[1] // k.shape[0]
    outputs = []
    for head in range(q.shape[1]):
        scores = k[head // group].double() @ q[0, head].double() * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if window is not None:
            scores[:-window] = -torch.inf
        sink = torch.zeros(0) if sinks is None else sinks[head : head + 1]
        weights = torch.cat((scores, sink.double())).softmax(0)[: len(scores)]
        outputs.append(weights @ v[head // group].double())
    return torch.cat(outputs)[None]


def test_threads_change_no_step() -> None:
    x, weight = normal(64, 1024), normal(1024, seed=1)
    angles = normal(64, 32, seed=2)
    k = normal(8, 700, 64, seed=3)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(
            (
                rms_norm(x, weight, 1e-6),
                gated("silu", x.clone(), x),
                rotate(x.view(64, 16, 64), angles.cos(), angles.sin()),
                attend(x[:1].view(1, 16, 64), k, k, AttentionOptions(0.1)),
                attend(x.view(64, 16, 64), k, k, AttentionOptions(0.1)),
            )
        )
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
