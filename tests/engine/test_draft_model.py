"""A draft model: replies are those without it, in every kind of cache, and as they are drawn."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mrs.engine.draft_length import DraftLength
from mrs.engine.draft_model import DraftModel
from mrs.engine.draft_pace import DraftPace
from mrs.engine.engine import Engine
from mrs.engine.engine_builder import DraftConfig
from mrs.engine.sampling.acceptance import accept
from mrs.engine.sampling.candidates import probabilities, sample_token
from mrs.engine.sampling.sampler import Proposal, Sampler
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.speed.draft_gain import DraftCost
from mrs.request import Sampling
from support.draft_pace import let_steps_take_as_planned
from support.engines import Asked, generate, make_engine
from support.suites import first
from support.tiny_decoders import GREEDY, VOCABULARY, WARM, tiny_decoder

KINDS = ["dense", "window", "latent", "longrope", "hybrid", "delta"]
PROMPT = [7, 8, 9, 10, 11, 12] * 4
TOKENS = 200


@pytest.fixture(autouse=True)
def as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    let_steps_take_as_planned(monkeypatch)


def begin_engine(
    kind: str, draft_kind: str | None = None, *, planned_drafts: int = 4, **settings: object
) -> Engine:
    """An engine whose draft model is of `draft_kind`, or the large model itself."""
    limits = {"planned_tokens": TOKENS, "context_tokens": TOKENS, "chunk_tokens": 40}
    size = CacheSize(TOKENS, planned_drafts, 40, 8)
    draft = DraftConfig([tiny_decoder(draft_kind or kind)], TOKENS, size, DraftCost(0.01))
    return make_engine(
        tiny_decoder(kind), speculate=True, draft=draft, block_tokens=8, **(limits | settings)
    )


def plain_engine(kind: str, **settings: object) -> Engine:
    return make_engine(
        tiny_decoder(kind),
        planned_tokens=TOKENS,
        context_tokens=TOKENS,
        chunk_tokens=40,
        **settings,
    )


def drafter(engine: Engine) -> DraftModel:
    found = engine.scheduler.drafter
    assert isinstance(found, DraftModel)
    return found


@pytest.fixture
def some_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in six tokens of drafts is replaced by the next one of the vocabulary."""
    chance, propose = random.Random(1), Sampler.propose

    def changed(self: Sampler, logits: np.ndarray, rng: random.Random) -> Proposal:
        proposal = propose(self, logits, rng)
        if chance.random() < 0.17:
            return proposal._replace(token=(proposal.token + 1) % VOCABULARY)
        return proposal

    monkeypatch.setattr(Sampler, "propose", changed)


@pytest.mark.few("dense-greedy", "hybrid-greedy", "window-seeded")
@pytest.mark.usefixtures("some_wrong")
@pytest.mark.values
@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, seed=3)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_those_without_drafts(kind: str, sampling: Sampling) -> None:
    """The reply of 70 tokens crosses blocks of 8 tokens, a window, and a switch of rope factors."""
    settings = replace(sampling, max_tokens=70)
    plain = generate(plain_engine(kind), PROMPT, settings)
    engine = begin_engine(kind)
    assert generate(engine, PROMPT, settings) == plain
    stats = engine.stats
    assert (30 if sampling is GREEDY else 0) < stats.accepted_tokens < stats.drafted_tokens
    assert engine.caches.space.pools[0].used == 0
    assert drafter(engine).caches.space.pools[0].used == 0


@pytest.mark.usefixtures("some_wrong")
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_a_rewound_draft_model_goes_on_as_a_new_one(kind: str) -> None:
    """After rejected tokens its next logits are those of the same text from nothing."""
    engine = begin_engine(kind)
    asked = Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=50))
    drafts: list[tuple[list[int], list[int]]] = []
    draft = drafter(engine).draft

    def noted(wanted):
        draft(wanted)
        drafts.extend((list(each.token_ids), list(each.draft)) for each in wanted if each.draft)

    engine.scheduler.drafter.draft = noted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random.Random, "random", lambda self: 0.5)  # none is changed
        asked.finish()
    text = asked.sequence.token_ids
    assert len(drafts) > 2
    assert all(tokens == text[len(before) :][: len(tokens)] for before, tokens in drafts)


def test_several_sequences_draft_together() -> None:
    prompts = [[n, n + 1, n + 2] * 5 for n in range(4)]
    settings = replace(GREEDY, max_tokens=30)
    plain = [generate(plain_engine("window"), prompt, settings) for prompt in prompts]
    engine = begin_engine("window", max_seqs=4, planned_seqs=4)
    asked = [Asked.of(engine, prompt, settings) for prompt in prompts]
    asked[3].sequence.abort()
    assert [each.finish() for each in asked[:3]] == plain[:3]
    assert engine.stats.accepted_tokens > 40
    assert drafter(engine).caches.space.pools[0].used == 0


def test_sequences_beyond_the_planned_ones_have_no_drafts() -> None:
    engine = begin_engine("dense", planned_drafts=1, max_seqs=2, planned_seqs=2)
    long = [*range(40)] * 3
    settings = replace(GREEDY, max_tokens=30)
    asked = [Asked.of(engine, long[n:], settings) for n in range(2)]
    assert asked[0].finish() == generate(plain_engine("dense"), long, settings)
    assert asked[0].sequence.drafts.drafted_tokens
    assert not asked[1].sequence.drafts.drafted_tokens, "while there is no memory for them"
    assert asked[1].finish() == generate(plain_engine("dense"), long[1:], settings)
    assert drafter(engine).caches.space.pools[0].count == TOKENS // 8


def test_a_preempted_sequence_drafts_again() -> None:
    settings = replace(GREEDY, max_tokens=70)
    plain = generate(plain_engine("dense"), PROMPT, settings)
    engine = begin_engine("dense", pool_blocks=16, max_seqs=2, planned_seqs=2, prefix_cache_n=4)
    asked = [Asked.of(engine, PROMPT, settings) for _ in range(2)]
    for each in asked:
        assert each.finish() == plain
    assert engine.stats.preempted > 0
    assert drafter(engine).caches.space.pools[0].used == 0


def test_an_aborted_draft_leaves_no_trace() -> None:
    """A reply is aborted while the draft model reads its prompt."""
    engine = begin_engine("dense")
    asked = Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=30))
    asked.advance()
    model = drafter(engine)
    forward = model._worker.forward

    def aborted(batch, check):
        asked.sequence.abort()
        return forward(batch, check)

    model._worker.forward = aborted
    while not asked.sequence.is_finished:
        engine.step()
    model._worker.forward = forward
    assert model.caches.space.pools[0].used == engine.caches.space.pools[0].used == 0
    settings = replace(GREEDY, max_tokens=30)
    assert generate(engine, PROMPT, settings) == generate(plain_engine("dense"), PROMPT, settings)


def test_accepted_tokens_are_distributed_as_wanted() -> None:
    """Tokens that a draft distribution proposes, against the wanted one, in exact arithmetic."""
    chance = np.random.default_rng(0)
    wanted, drafted = (chance.dirichlet(np.ones(6)).astype(np.float32) for _ in range(2))
    wanted[2] = 0
    wanted /= wanted.sum()
    rng, count = random.Random(4), 20000
    found = Counter[int]()
    for _ in range(count):
        token = rng.choices(range(6), drafted.tolist())[0]
        found[accept(wanted, token, drafted, rng)] += 1
    for token, share in enumerate(wanted.tolist()):
        assert abs(found[token] / count - share) <= 4 * (share * (1 - share) / count) ** 0.5
    kept = sum(accept(wanted, 0, drafted, rng) == 0 for _ in range(count)) / count
    assert abs(kept - min(1, wanted[0] / drafted[0])) < 0.02


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "sampling",
    first(
        2,
        [
            Sampling(0.8, 0, 1.0, 0.0),
            Sampling(1.0, 5, 0.8, 0.1),
            Sampling(1.3, 4, 1.0, 0.0),
            Sampling(0.7, 0, 0.6, 0.0),
        ],
    ),
    ids=str,
)
def test_probabilities_are_those_of_drawn_tokens(sampling: Sampling) -> None:
    logits = np.random.default_rng(1).normal(0, 1.5, 12).astype(np.float32)
    logits[3] = logits[4]
    shares = probabilities(logits.copy(), sampling)
    assert shares.sum() == pytest.approx(1)
    rng, count = random.Random(2), 8000
    drawn = Counter(sample_token(logits.copy(), sampling, rng) for _ in range(count))
    for token, share in enumerate(shares.tolist()):
        assert abs(drawn[token] / count - share) <= 4.5 * (share * (1 - share) / count) ** 0.5


@pytest.mark.full
def test_replies_of_a_draft_model_are_distributed_as_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pairs of tokens with the drafts of another model, against those without drafts."""
    settings = replace(WARM, temperature=0.4, top_k=3, max_tokens=3)
    count = 300

    def reply(engine: Engine) -> tuple[int, ...]:
        """Each is drafted for like the first one, though few of the tokens are accepted."""
        if engine.scheduler.drafter is not None:
            drafter(engine).pace = DraftPace(DraftCost(0.01))
        return tuple(generate(engine, PROMPT, settings)[1:])

    def pairs(engine: Engine) -> Counter[tuple[int, ...]]:
        return Counter(reply(engine) for _ in range(count))

    let_steps_take_as_planned(monkeypatch)
    engine = begin_engine("dense", "window", prefix_cache_n=2)
    drafted, plain = pairs(engine), pairs(plain_engine("dense", prefix_cache_n=2))
    assert engine.stats.drafted_tokens >= count
    assert 0 < engine.stats.accepted_tokens < engine.stats.drafted_tokens
    for pair in {*drafted, *plain}:
        mean = (drafted[pair] + plain[pair]) / 2
        assert abs(drafted[pair] - plain[pair]) < 4.5 * (2 * mean) ** 0.5, pair


def test_drafts_have_the_length_that_is_likely_to_save_time() -> None:
    cheap, dear = (DraftLength(DraftPace(DraftCost(cost))) for cost in (0.02, 2.0))
    for _ in range(20):
        cheap.learn(4, 4)
    assert cheap.next(15) == 15
    assert dear.next(15) == 0
    assert [cheap.next(most) for most in (0, 3)] == [0, 3]
    for _ in range(60):
        cheap.learn(4, 0)
    assert cheap.next(15) == 0


def test_what_is_tried_after_a_pause_may_save_time_and_loses_little() -> None:
    """One token would lose time even if it were accepted: a step with a draft takes 1.5 more."""
    pace = DraftPace(DraftCost(0.1, step=1.5))
    length, lost, tried = DraftLength(pace), 0.0, []
    for step in range(2000):
        if drafted := length.next(15):
            tried.append(drafted)
            length.learn(drafted, 0)
            lost = lost + pace.cost(1).steps(drafted) - 1
            assert lost <= 0.02 * step + 4, "the first drafts of a text may all be wrong"
    least = pace.cost(1).least_length(15)
    assert least > 1
    assert tried[-1] == least
    assert len(tried) > 5
    assert DraftLength(DraftPace(DraftCost(1.5))).next(15) == 0


def test_the_end_of_a_reply_is_no_reason_for_a_pause() -> None:
    """Drafts of one token save no time, and there is no room for longer ones."""
    length = DraftLength(DraftPace(DraftCost(0.0, step=0.9)))
    assert [length.next(most) for most in (1, 1)] == [0, 0]
    assert length.next(15) > 1


def test_a_draft_is_tried_again_after_longer_and_longer_pauses() -> None:
    length, tried = DraftLength(DraftPace(DraftCost(0.3))), []
    for step in range(300):
        if length.next(8):
            tried.append(step)
            length.learn(4, 0)
    gaps = np.diff(tried)
    assert 3 < len(tried) < 20
    assert max(gaps) >= 64
