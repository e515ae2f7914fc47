"""FlashInfer computes prompts' attention; a stand-in with its interface computes it with torch.

The names and the order of the arguments are those of FlashInfer 0.7.2, and are compared with the
library's own where it is installed.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from attention_problems import Problem, Shape
from torch import Tensor

from mrs.kernels import attention_backend, flashinfer_attention
from mrs.kernels.attention_options import AttentionOptions
from mrs.kernels.flashinfer_attention import FlashInferAttention
from mrs.kernels.paged import PagedKV
from mrs.kernels.softmax_attention import attend_with_torch
from mrs.kernels.triton.paged_attention import TritonAttention

CPU = torch.device("cpu")
#: The first arguments of each method, after which others have defaults.
INIT = ["float_workspace_buffer", "kv_layout"]
PLAN = [
    "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads",
    "num_kv_heads", "head_dim_qk", "page_size", "head_dim_vo", "custom_mask", "packed_custom_mask",
    "causal", "pos_encoding_mode", "use_fp16_qk_reduction", "sm_scale", "window_left",
    "logits_soft_cap", "rope_scale", "rope_theta", "q_data_type", "kv_data_type",
]  # fmt: skip
RUN = ["q", "paged_kv_cache"]


class Wrapper:
    """Attention over pages (pages, KV, page, D), as the library documents its arguments."""

    plans = 0

    def __init__(self, workspace: Tensor, kv_layout: str = "NHD") -> None:
        assert workspace.dtype is torch.uint8
        assert kv_layout == "HND"

    def plan(self, **settings: Any) -> None:
        Wrapper.plans += 1
        assert set(settings) <= set(PLAN)
        for name in PLAN[:4]:
            assert settings[name].dtype is torch.int32
        assert settings["causal"]
        assert settings["paged_kv_last_page_len"].min() >= 1
        assert settings["paged_kv_last_page_len"].max() <= settings["page_size"]
        self._is = settings

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        settings, outs = self._is, []
        starts, pages = settings["qo_indptr"], settings["paged_kv_indptr"]
        assert q.is_contiguous()
        assert q.shape == (starts[-1], settings["num_qo_heads"], settings["head_dim_qk"])
        assert {x.dtype for x in paged_kv_cache} == {settings["kv_data_type"]}
        for n in range(len(starts) - 1):
            some = settings["paged_kv_indices"][pages[n] : pages[n + 1]]
            length = (len(some) - 1) * settings["page_size"] + settings["paged_kv_last_page_len"][n]
            k, v = (x[some].transpose(0, 1).flatten(1, 2)[:, :length] for x in paged_kv_cache)
            left = settings["window_left"]
            out = attend_with_torch(
                q[starts[n] : starts[n + 1]],
                k,
                v,
                AttentionOptions(
                    scale=settings["sm_scale"],
                    window=None if left < 0 else left + 1,
                    softcap=settings["logits_soft_cap"] or None,
                ),
            )
            outs.append(out.view(-1, *q.shape[1:]))
        return torch.cat(outs)


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = Wrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer_attention, "find_spec", lambda name: True)
    monkeypatch.setattr(flashinfer_attention, "FLASHINFER_BYTES", 16)
    for each in ("_planned", "_workspace", "has_flashinfer"):
        getattr(flashinfer_attention, each).cache_clear()


BF16 = Shape(4, 2, 64, (1, 12, 5), (9, 70, 0), dtype=torch.bfloat16)
SHAPES = (
    BF16,
    replace(BF16, heads=6, kv_heads=6, dim=128, window=16),
    replace(BF16, heads=8, kv_heads=1, dim=256, softcap=20.0, dtype=torch.float16),
    replace(BF16, block_tokens=16, window=24, softcap=5.0),
)
OTHERS = (
    replace(BF16, new=(1, 1, 1)),  # a decode step
    replace(BF16, dim=80),
    replace(BF16, dtype=torch.float32),
    replace(BF16, has_sinks=True),
    replace(BF16, has_ends=True),
    replace(BF16, dim=128, value_dim=64),
    replace(BF16, cache_dtype=torch.float8_e4m3fn),
)


def attend(problem: Problem, backend: FlashInferAttention) -> Tensor:
    shape = problem.shape
    options = AttentionOptions(0.2, shape.window, shape.softcap, problem.sinks)
    return backend.attend(problem.q, problem.cache, problem.batch, options)


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_attends(shape: Shape) -> None:
    problem = Problem(shape)
    expected = problem.expected()
    error = (attend(problem, FlashInferAttention()).double() - expected).norm() / expected.norm()
    assert error < 2e-2


@pytest.mark.usefixtures("_stand_in")
def test_layers_share_a_plan() -> None:
    problem, backends = Problem(BF16), (FlashInferAttention(), FlashInferAttention())
    before = Wrapper.plans
    for backend in backends:
        attend(problem, backend)
    assert Wrapper.plans == before + 1
    problem.batch = replace(problem.batch)
    attend(problem, backends[0])
    assert Wrapper.plans == before + 2


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("shape", OTHERS, ids=range(len(OTHERS)))
def test_triton_computes_the_rest(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, seen = Problem(shape), []

    def record(self: TritonAttention, q: Tensor, kv: PagedKV, batch: Any, options: Any) -> Tensor:
        seen.append((options.scale, options.window, options.softcap, options.sinks))
        return q.flatten(1)

    monkeypatch.setattr(TritonAttention, "attend", record)
    before = Wrapper.plans
    attend(problem, FlashInferAttention())
    assert Wrapper.plans == before
    assert seen == [(0.2, None, None, problem.sinks)]


@pytest.mark.usefixtures("_stand_in")
def test_it_is_used_only_where_it_is_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has = flashinfer_attention.has_flashinfer
    assert has(CPU)
    has.cache_clear()
    monkeypatch.setattr(Wrapper, "run", lambda self, q, kv: q * 0)
    assert not has(CPU)
    has.cache_clear()
    monkeypatch.setattr(Wrapper, "plan", lambda self, **settings: 1 / 0)
    flashinfer_attention._planned.cache_clear()
    assert not has(CPU)
    has.cache_clear()
    assert [line.partition(", as")[0] for line in caplog.messages] == [
        "cpu: FlashInfer is not used"
    ] * 2
    monkeypatch.setattr(flashinfer_attention, "find_spec", lambda name: None)
    assert not has(CPU)
    has.cache_clear()


@pytest.mark.parametrize(("found", "expected"), [(True, "FlashInfer"), (False, "Triton")])
def test_the_backend_of_a_gpu(found: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backend, "has_triton_attention", lambda device: True)
    monkeypatch.setattr(attention_backend, "has_flashinfer", lambda device: found)
    kv = PagedKV(1, 64, 64, block_tokens=8, dtype=torch.bfloat16, device=CPU)
    kv.device = torch.device("cuda", 0)
    backend = attention_backend.attention_backend(kv)
    assert type(backend).__name__ == f"{expected}Attention"


@pytest.mark.needs("FlashInfer")
def test_the_library_has_this_interface() -> None:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Library

    for method, names in ((Library.__init__, INIT), (Library.plan, PLAN), (Library.run, RUN)):
        assert list(inspect.signature(method).parameters)[1 : len(names) + 1] == names
