"""Every text family in processes that share its layers, and images."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clusters import Workers, cluster_decoder, request_for
from ordered_reference import ordered_reference, require_whole
from test_shared_exact import require_equal, shared_request

from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from mrs.request import VisionRequest
from support.suites import first, suite_of

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("families", "vision")]
from case import Case
from gguf_files import write_gguf
from parity_cases import CASES
from saved_models import save_model

_BY_ID = {each.id: each for each in CASES}
#: One of each way to share a layer, the first of its families.
_KINDS = [
    _BY_ID[name]
    for name in (
        "qwen3_next-default",  # a delta net, of which value heads follow their key heads
        "kimi_linear-default",
        "granitemoehybrid-default",  # heads of a single group, over all of which a norm goes
        "nemotron_h-experts",  # groups of heads; experts between two linear maps
        "falcon_h1-default",  # attention and state space in one layer
        "lfm2-default",
        "deepseek_v2-default",
        "deepseek_v32-default",
        "olmo2-default",  # a norm over the queries of all heads
        "gemma3n_text-default",  # shared keys, several streams, a sparse gate
        "gemma4_text-experts",  # an MLP and experts with a norm each
        "llama4_text-default",
    )
]
_FIRST = {each.family: each for each in reversed(CASES)}
#: Layers that borrow a choice, embeddings of another width, slopes of each head.
_FORMS = [
    _BY_ID[name]
    for name in (
        *("deepseek_v32-even", "glm_moe_dsa-lent", "glm_moe_dsa-lent-even"),
        *("opt-350m", "falcon-rw", "gpt2-by-depth"),
    )
]
_FAMILIES = [
    pytest.param(each, id=each.id, marks=suite_of(each, (*_KINDS, *_FORMS)))
    for each in dict.fromkeys((*_FIRST.values(), *_KINDS, *_FORMS))
]
_OTHERS = [each for each in _FIRST.values() if each not in _KINDS]
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
#: Enough heads for three and four processes.
_MANY_HEADS = {
    "qwen3_next-default": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    "kimi_linear-as-many-heads": {},
    "granitemoehybrid-default": {},
    "deepseek_v2-default": {},
    "gemma3n_text-default": {},
}


def with_heads(case: Case) -> Case:
    return replace(case, changes={**case.changes, **_HEADS, **_MANY_HEADS[case.id]})


def write_case(case: Case, folder: Path) -> Path:
    return save_model(case, folder / "model").folder


@pytest.mark.few(
    "falcon-rw",
    "falcon_h1-default",
    "gpt2-by-depth",
    "deepseek_v32-even",
    "granitemoehybrid-default",
    "kimi_linear-default",
    "llama4_text-default",
    "nemotron_h-experts",
    "lfm2-default",
    "qwen3_next-default",
    "deepseek_v2-default",
)
@pytest.mark.parametrize("case", _FAMILIES)
def test_both_shares_together_are_the_model(case: Case, tmp_path: Path) -> None:
    """All in one process."""
    folder = write_case(case, tmp_path)
    require_whole(request_for(folder, None, 0), 2, 1e-4)


@pytest.mark.few("3-granitemoehybrid-default", "4-kimi_linear-as-many-heads")
@pytest.mark.values
@pytest.mark.parametrize("name", _MANY_HEADS)
@pytest.mark.parametrize("ranks", [3, 4])
def test_uneven_shares_together_are_the_model(name: str, ranks: int, tmp_path: Path) -> None:
    folder = write_case(with_heads(_BY_ID[name]), tmp_path)
    require_whole(request_for(folder, None, 0), ranks, 1e-4)


#: Rows and columns of these files lie otherwise than in safetensors.
_GGUF = [
    "qwen3_5_text-tiled",  # of each key head in turn: several ranges of columns
    "qwen3_next-default",
    "kimi_linear-as-many-heads",
    "nemotron_h-experts",
    "falcon_h1-default",
    "lfm2-default",
    "deepseek_v2-default",
    "gemma3n_text-default",
]


@pytest.mark.few("falcon_h1-default", "lfm2-default", "qwen3_5_text-tiled", "nemotron_h-experts")
@pytest.mark.parametrize("name", _GGUF)
def test_shares_of_gguf_files_are_the_model(name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(save_model(_BY_ID[name], tmp_path / "model"), file)  # type: ignore[arg-type]
    require_whole(request_for(file, None, 0), 2, 1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["qwen3_next-default", "lfm2-default", "gemma3n_text-default"])
def test_shares_are_quantized_as_the_model_is(name: str, tmp_path: Path) -> None:
    case = _BY_ID[name]
    sizes = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    folder = write_case(replace(case, changes={**case.changes, **sizes}), tmp_path)
    require_whole(request_for(folder, None, 0, isq="q8_0"), 2, 0.03)


@pytest.mark.full
@pytest.mark.parametrize("case", first(1, _KINDS), ids=lambda case: case.id)
def test_two_processes_make_the_tokens_of_the_ordered_sum(
    case: Case, workers: Workers, tmp_path: Path
) -> None:
    require_equal(write_case(case, tmp_path), workers, 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", _OTHERS, ids=lambda case: case.id)
def test_all_other_families_in_two_processes(case: Case, workers: Workers, tmp_path: Path) -> None:
    require_equal(write_case(case, tmp_path), workers, 2)


@pytest.mark.full
@pytest.mark.parametrize(("name", "ranks"), [("qwen3_next-default", 3)])
def test_three_processes_make_them_too(
    name: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    require_equal(write_case(with_heads(_BY_ID[name]), tmp_path), workers, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", _MANY_HEADS)
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_processes_make_them_too(
    name: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    require_equal(write_case(with_heads(_BY_ID[name]), tmp_path), workers, ranks)


@pytest.mark.full
@pytest.mark.parametrize(
    "family",
    ["qwen3_vl", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma3", "qwen3_5"))],
)
def test_two_processes_see_images(family: str, workers: Workers, tmp_path: Path) -> None:
    """Rank 0 has the tower; what it makes of images goes to all layers that read it."""
    from vision_cases import CASES as IMAGES
    from vision_reference import make_vision_reference
    from vision_running import Conversation, difference, load_vision_model

    case = next(each for each in IMAGES if each.family == family)
    truth = make_vision_reference(case, tmp_path / "model")
    model = load_vision_model(truth.folder)
    shown = [
        (each.ids, model.shown(each.text, each.images)[1])
        for each in (truth.prompts[2], truth.prompts[0])
    ]

    def said(decoder: Decoder) -> torch.Tensor:
        """The logits of two prompts, in chunks."""
        space = decoder.new_space(CacheSize(100, 2, 7))
        target: Any = SimpleNamespace(decoder=decoder)
        talks = [Conversation(target, 7, space) for _ in shown]
        return torch.cat([talk.feed(*each) for talk, each in zip(talks, shown, strict=True)])

    limits = VisionRequest(max_num_images=2, max_image_length=128)
    expected = said(ordered_reference(request_for(truth.folder, None, 0, vision=limits), 2))
    known = torch.cat([each.logits for each in (truth.prompts[2], truth.prompts[0])])
    assert difference(expected, known) < 1e-4
    request = shared_request(truth.folder, workers.port, 2, vision=limits)
    with cluster_decoder(request) as (decoder, cluster):
        assert torch.equal(said(decoder), expected)
        vision_bytes = cluster.plans[0].weight_bytes - cluster.plans[1].weight_bytes
        tower = [each for each in model.description.parameters if each.name.startswith("vision.")]
        assert vision_bytes >= sum(model.plan.storage[each.name].size_bytes for each in tower) > 0
