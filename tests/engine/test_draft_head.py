"""A model's own draft head: its drafts are those of its published code, replies those without."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mrs.engine.draft_head import DraftHead
from mrs.engine.draft_model import Draft
from mrs.engine.engine import Engine
from mrs.engine.engine_builder import DraftConfig
from mrs.engine.image_input import ImageInput
from mrs.engine.sampling.sampler import Proposal
from mrs.engine.sequence import SequenceRequest
from mrs.layers.joined_input import memory
from mrs.media.image_processors import Prepared
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.speed.draft_gain import DraftCost
from mrs.request import AdapterRequest, Sampling
from support.draft_heads import HeadedModel, LoadedHead, load_headed, make_headed_model
from support.draft_pace import let_steps_take_as_planned
from support.engines import Asked, generate, make_engine
from support.lora_files import Adapter
from support.tiny_decoders import GREEDY, WARM

TOKENS, VOCABULARY = 256, 160
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.08,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
KINDS = {
    "qwen3_5_text": _DELTA,
    "glm4_moe": {**_EXPERTS, "head_dim": 16, "first_k_dense_replace": 1},
    "deepseek_v3": _LATENT,
    # The windows of the target, and that of the head, are shorter than most prompts.
    "mimo_v2_flash": {**_EXPERTS, "head_dim": 24, "v_head_dim": 16, "sliding_window": 16},
    "exaone_moe": {
        "head_dim": 16,
        "sliding_window": 16,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    "glm_moe_dsa": {**_LATENT, "index_head_dim": 16, "index_n_heads": 16, "index_topk": 24},
    "nemotron_h": {
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "moe", "full_attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 24,
        "n_groups": 2,
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "time_step_min": 1e-6,
        "moe_shared_expert_intermediate_size": 40,
    },
}
#: Kinds with several heads: those of one read the target's states, those of the other are chained.
SEVERAL = {"mimo_v2_flash-3": 3, "glm4_moe-2": 2}
Make = Callable[[str], tuple[HeadedModel, LoadedHead]]


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, tuple[HeadedModel, LoadedHead]] = {}

    def make(kind: str) -> tuple[HeadedModel, LoadedHead]:
        if kind not in made:
            folder: Path = tmp_path_factory.mktemp(kind)
            family, heads = kind.partition("-")[0], SEVERAL.get(kind, 1)
            config = {**_SIZES, **KINDS[family]}
            truth = make_headed_model(family, config, folder, heads=heads)
            made[kind] = truth, load_headed(truth)
        return made[kind]

    return make


@pytest.fixture(autouse=True)
def as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    let_steps_take_as_planned(monkeypatch)


def begin(loaded: LoadedHead, *, drafts: bool = True, planned: int = 16, **settings) -> Engine:
    limits = {"planned_tokens": TOKENS, "context_tokens": TOKENS, "chunk_tokens": 40}
    draft = None
    if drafts:
        size = CacheSize(TOKENS, planned, 40, 8)
        draft = DraftConfig(loaded.draft.decoders, TOKENS, size, DraftCost(0.01))
    speculate = {"speculate": drafts, "draft": draft}
    return make_engine(loaded.target, block_tokens=8, **speculate, **(limits | settings))


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Five in six tokens of drafts are replaced by those of the texts that are added here."""
    texts: list[list[int]] = []
    chance, choose = random.Random(1), Draft.choose

    def changed(self: Draft, logits, rng) -> None:
        choose(self, logits, rng)
        before = self.owner.token_ids + self.copy.token_ids[self.copy.num_prompt_tokens : -1]
        after = [t[len(before)] for t in texts if t[: len(before)] == before < t]
        if after and chance.random() < 0.83:
            self.copy.token_ids[-1] = after[0]
            self.proposals[-1] = Proposal(after[0], None)

    monkeypatch.setattr(Draft, "choose", changed)
    return texts


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    chance = random.Random(seed)
    return [
        [chance.randrange(VOCABULARY) for _ in range(chance.randint(2, 150))] for _ in range(count)
    ]


@pytest.mark.few(
    "qwen3_5_text-4-greedy",
    "deepseek_v3-16-greedy",
    "glm4_moe-1-seeded",
    "mimo_v2_flash-4-greedy",
    "nemotron_h-1-greedy",
    "mimo_v2_flash-3-4-greedy",
    "glm4_moe-2-1-seeded",
)
@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, seed=3)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("kind", [*KINDS, *SEVERAL])
def test_replies_are_those_without_a_head(
    kind: str, batch: int, sampling: Sampling, headed: Make, oracle: list[list[int]]
) -> None:
    """Prompts are longer than a chunk, and than the states that wait."""
    _, loaded = headed(kind)
    settings, asked_of = replace(sampling, max_tokens=24), prompts(16)
    plain = [generate(begin(loaded, drafts=False), prompt, settings) for prompt in asked_of]
    oracle += [prompt + reply for prompt, reply in zip(asked_of, plain, strict=True)]
    engine = begin(loaded, max_seqs=batch, planned_seqs=batch)
    asked = [Asked.of(engine, prompt, settings) for prompt in asked_of]
    assert [each.finish() for each in asked] == plain
    stats = engine.stats
    assert 60 < stats.accepted_tokens < stats.drafted_tokens
    positions = stats.accepted_by_position
    assert sum(positions) == stats.accepted_tokens
    assert sum(stats.drafted_by_position) == stats.drafted_tokens
    assert stats.drafted_by_position[0] == stats.drafts
    assert positions == tuple(sorted(positions, reverse=True))
    drafter = engine.scheduler.drafter
    assert isinstance(drafter, DraftHead)
    assert all(caches.space.pools[0].used == 0 for _, caches in drafter._heads)
    assert not drafter._drafts


def known_reply(loaded: LoadedHead, oracle: list[list[int]]) -> tuple[list[int], Sampling]:
    """A prompt and the settings of a reply, which the oracle has from now on."""
    prompt, settings = (prompts(1, seed=8)[0] * 3)[:120], replace(GREEDY, max_tokens=90)
    oracle.append(prompt + generate(begin(loaded, drafts=False), prompt, settings))
    return prompt, settings


@pytest.mark.few("qwen3_5_text")
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_published_code(
    kind: str, headed: Make, oracle: list[list[int]]
) -> None:
    """After accepted and rejected tokens, the head reads what it would read of the whole text."""
    truth, loaded = headed(kind)
    prompt, settings = known_reply(loaded, oracle)
    engine, first = begin(loaded), []
    with pytest.MonkeyPatch.context() as patch:
        own = Draft.choose

        def noted(self: Draft, logits, rng) -> None:
            if not self.proposals:
                first.append((list(self.owner.token_ids), torch.tensor(logits)))
            own(self, logits, rng)

        patch.setattr(Draft, "choose", noted)
        Asked.of(engine, prompt, settings).finish()
    assert len(first) > 1  # a text that repeats itself is looked up
    for text, logits in first:
        expected = truth.read(text[1:], truth.states(text[:-1]))[0][-1]
        assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-4


class EvenTokens:
    """A grammar of even tokens, of which it forces three after each that ends in 4."""

    is_complete = False

    def __init__(self) -> None:
        self.forced: list[int] = []

    def __call__(self, logits: np.ndarray) -> None:
        logits[1::2] = -np.inf

    def append(self, token: int) -> None:
        after = [2, 0, 8] if token % 10 == 4 else []
        self.forced = self.forced[1:] if self.forced else after

    def forced_tokens(self) -> list[int]:
        return self.forced

    def num_allowed(self, tokens: list[int]) -> int:
        return next((n for n, token in enumerate(tokens) if token % 2), len(tokens))


@pytest.mark.parametrize("kind", ["qwen3_5_text", "glm4_moe"])
def test_a_grammar_has_its_replies(kind: str, headed: Make, oracle: list[list[int]]) -> None:
    _, loaded = headed(kind)
    prompt = prompts(1)[0]

    def reply(engine: Engine) -> Asked:
        settings = replace(GREEDY, max_tokens=60)
        asked = Asked(
            engine, engine.add(SequenceRequest(prompt, settings, constraint=EvenTokens()))
        )
        asked.finish()
        return asked

    plain = reply(begin(loaded, drafts=False)).tokens
    oracle.append(prompt + plain)
    asked = reply(begin(loaded))
    assert asked.tokens == plain
    assert any(token % 10 == 4 for token in plain)
    assert asked.sequence.drafts.accepted_tokens > 5


def test_replies_with_adapters_are_those_without_a_head(
    tmp_path: Path, headed: Make, oracle: list[list[int]]
) -> None:
    """The head reads the states of the adapted model, and is itself without the adapter."""
    truth, _ = headed("glm4_moe")
    weights = load_file(truth.path / "model.safetensors")
    own = {name: each for name, each in weights.items() if "layers.2." not in name}
    folder = Adapter(own, ["q_proj", "o_proj"]).write(tmp_path / "tuned")
    adapters = [AdapterRequest(str(folder), "tuned", is_merged=False)]
    loaded, prompt = load_headed(truth, adapters=adapters), prompts(1)[0]
    settings = [replace(GREEDY, max_tokens=40, adapter=name) for name in ("tuned", None)]
    plain = [generate(begin(loaded, drafts=False), prompt, each) for each in settings]
    assert plain[0] != plain[1]
    oracle += [prompt + each for each in plain]
    engine = begin(loaded, max_seqs=2, planned_seqs=2)
    asked = [Asked.of(engine, prompt, each) for each in settings]
    assert [each.finish() for each in asked] == plain
    assert all(each.sequence.drafts.accepted_tokens > 5 for each in asked)


def test_a_sequence_with_images_has_no_drafts_of_the_head(
    headed: Make, oracle: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loaded = headed("glm4_moe")
    tower = SimpleNamespace(description=SimpleNamespace(enters="embeddings"))
    monkeypatch.setattr(loaded.target, "vision", tower)
    prompt, settings = prompts(1)[0], replace(GREEDY, max_tokens=40)

    def shown() -> list[ImageInput]:
        prepared = cast(Prepared, SimpleNamespace(digest=7))
        features = torch.full((3, 64), 0.5)
        return [ImageInput(prepared, range(4, 7), features=features)]

    plain = generate(begin(loaded, drafts=False), prompt, settings, shown())
    without = generate(begin(loaded, drafts=False), prompt, settings)
    oracle += [prompt + plain, prompt + without]
    engine = begin(loaded, max_seqs=2, planned_seqs=2)
    asked = [Asked.of(engine, prompt, settings, each) for each in (shown(), ())]
    assert [each.finish() for each in asked] == [plain, without]
    assert not engine.scheduler.drafter._drafts
    assert asked[1].sequence.drafts.accepted_tokens > 5


@pytest.mark.parametrize("kind", SEVERAL)
def test_each_of_several_heads_drafts_a_token(
    kind: str, headed: Make, oracle: list[list[int]]
) -> None:
    """After accepted and rejected tokens, each reads what it would read of the whole text."""
    truth, loaded = headed(kind)
    prompt, settings = known_reply(loaded, oracle)
    engine, chosen = begin(loaded), []
    with pytest.MonkeyPatch.context() as patch:
        own = Draft.choose

        def noted(self: Draft, logits, rng) -> None:
            drafted = [each.token for each in self.proposals]
            chosen.append((list(self.owner.token_ids), drafted, torch.tensor(logits)))
            own(self, logits, rng)

        patch.setattr(Draft, "choose", noted)
        Asked.of(engine, prompt, settings).finish()
    assert {len(drafted) for _, drafted, _ in chosen} == {*range(SEVERAL[kind])}
    for text, drafted, logits in chosen:
        states = truth.states(text[:-1])
        for head in range(len(drafted) + 1):
            ids = (text + drafted[:head])[1 + head :]
            expected, computed = truth.read(ids, states, head)
            states = computed if kind == "glm4_moe-2" else states
        assert float((logits - expected[-1]).abs().max() / expected[-1].abs().max()) < 1e-4
    stats = engine.stats
    assert 0 < stats.accepted_by_position[SEVERAL[kind] - 1] < stats.drafts


def test_a_head_reads_itself_where_the_target_has_not_been(headed: Make) -> None:
    truth, loaded = headed("glm4_moe")
    prompt = prompts(1, seed=5)[0][:20]
    engine = begin(loaded)
    drafts = []
    draft = engine.scheduler.drafter.draft

    def noted(wanted) -> None:
        draft(wanted)
        drafts.extend((list(each.token_ids), list(each.draft)) for each in wanted if each.draft)

    engine.scheduler.drafter.draft = noted
    Asked.of(engine, prompt, replace(GREEDY, max_tokens=4)).finish()
    text, drafted = drafts[0]
    assert len(drafted) > 1
    states, ids, expected = truth.states(text[:-1]), text[1:], []
    for _ in drafted:
        logits, own = truth.read(ids, states)
        expected.append(int(logits[-1].argmax()))
        ids, states = [*ids, expected[-1]], torch.cat([states, own[-1:]])
    assert drafted == expected


@pytest.mark.few("glm4_moe", "mimo_v2_flash-3")
@pytest.mark.parametrize("kind", [*KINDS, *SEVERAL])
def test_a_prompt_of_the_prefix_cache_is_read_from_its_end_on(
    kind: str, headed: Make, oracle: list[list[int]]
) -> None:
    """Its first states are not computed; so it is after a preemption."""
    _, loaded = headed(kind)
    settings = replace(GREEDY, max_tokens=60)
    prompt = [*range(60)] * 2
    plain = generate(begin(loaded, drafts=False), prompt, settings)
    oracle.append(prompt + plain)
    engine = begin(loaded, prefix_cache_n=4, pool_blocks=31, max_seqs=2, planned_seqs=2)
    first = Asked.of(engine, prompt, settings)
    assert first.finish() == plain
    others = [Asked.of(engine, prompt, settings) for _ in range(2)]
    assert [each.finish() for each in others] == [plain] * 2
    if kind in ("glm4_moe", "deepseek_v3", "glm_moe_dsa"):
        # States, and tokens of windows, are stored at the end of the prompt alone.
        assert all(each.sequence.num_cached_tokens > 60 for each in others)
    assert all(each.sequence.drafts.accepted_tokens > 5 for each in others)
    assert engine.scheduler.drafter.caches.space.pools[0].used == 0


def test_after_a_pause_the_head_begins_anew(headed: Make, oracle: list[list[int]]) -> None:
    _, loaded = headed("glm4_moe")
    prompt, settings = prompts(1, seed=5)[0][:20], replace(GREEDY, max_tokens=200)
    plain = generate(begin(loaded, drafts=False), prompt, settings)
    oracle.append(prompt + plain)
    engine = begin(loaded)
    asked = Asked.of(engine, prompt, settings)
    while asked.sequence.num_new_tokens < 20:
        engine.step()
    drafts = asked.sequence.drafts.drafts
    drafter = engine.scheduler.drafter
    drafter._drafts[asked.sequence].length._paused_steps = memory.MOST_UNREAD + 20
    assert asked.finish() == plain
    assert asked.sequence.drafts.drafts > drafts


def test_prompts_end_no_pause(headed: Make) -> None:
    """A pause of 400 steps lasts for 400 tokens of replies, however long their prompts are."""
    _, loaded = headed("glm4_moe")
    engine = begin(loaded)
    drafter = engine.scheduler.drafter
    drafter.pace.paused_steps = 400
    settings = replace(GREEDY, max_tokens=20)
    for number, prompt in enumerate(prompts(8, seed=4), start=1):
        Asked.of(engine, prompt * 2, settings).finish()
        assert 0 < 400 - drafter.pace.paused_steps <= 20 * number


def test_an_aborted_sequence_leaves_no_trace(headed: Make) -> None:
    _, loaded = headed("glm4_moe")
    engine = begin(loaded, max_seqs=2, planned_seqs=2)
    settings = replace(GREEDY, max_tokens=30)
    gone, stays = (Asked.of(engine, [*range(n, n + 100)], settings) for n in (0, 20))
    engine.step()
    gone.sequence.abort()
    plain = generate(begin(loaded, drafts=False), [*range(20, 120)], settings)
    assert stays.finish() == plain
    assert engine.scheduler.drafter.caches.space.pools[0].used == 0
    assert not engine.scheduler.drafter._drafts


def test_few_states_wait(headed: Make, oracle: list[list[int]]) -> None:
    """Those of a long prompt are read as they come, and those of a pause are not kept."""
    _, loaded = headed("glm4_moe")
    prompt, settings = prompts(1, seed=9)[0] * 2, replace(GREEDY, max_tokens=90)
    prompt = prompt[:120]
    engine = begin(loaded)
    asked, most = Asked.of(engine, prompt, settings), 0
    while not asked.sequence.is_finished:
        engine.step()
        waiting = [len(each.unread) for each in engine.scheduler.drafter._drafts.values()]
        most = max(most, *waiting, 0)
    assert 1 < most <= memory.MOST_UNREAD + 16
