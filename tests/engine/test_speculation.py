"""Replies are the same with drafts of their next tokens, whatever the drafts are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mrs.engine.choose_tokens import choose_tokens
from mrs.engine.engine import Engine
from mrs.engine.prompt_lookup import PromptLookup
from mrs.engine.sampling.sampler import Sampler
from mrs.engine.sequence import Sequence as EngineSequence
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.request import Sampling
from support.engines import Asked, generate, make_engine
from support.tiny_decoders import GREEDY, VOCABULARY, WARM, tiny_decoder

KINDS = ["dense", "window", "latent", "longrope", "hybrid", "delta"]
PROMPT = [7, 8, 9, 10, 11, 12] * 4


def begin_engine(kind: str, *, speculate: bool = True, **settings: object) -> Engine:
    limits = {"planned_tokens": 200, "context_tokens": 200, "chunk_tokens": 40, "seed": 3}
    return make_engine(tiny_decoder(kind), speculate=speculate, **(limits | settings))


class HalfRight:
    """Drafts the tokens of a known text, about one in six of them changed."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text, self._chance = text, random.Random(1)

    def draft(self, token_ids: Sequence[int], most_tokens: int) -> list[int]:
        tokens = self._text[len(token_ids) :][: self._chance.randint(1, most_tokens)]
        return [(t + (self._chance.random() < 0.17)) % VOCABULARY for t in tokens]

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


def ask_with_drafts(engine: Engine, sampling: Sampling, text: Sequence[int]) -> Asked:
    """A reply to PROMPT, with drafts of the sequence `text`."""
    asked = Asked.of(engine, PROMPT, sampling)
    asked.sequence.lookup = HalfRight(text)  # type: ignore[assignment]
    return asked


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_those_without_drafts(kind: str, sampling: Sampling) -> None:
    """The reply of 70 tokens crosses blocks of 8 tokens, a window, and a switch of rope factors."""
    settings = replace(sampling, max_tokens=70, frequency_penalty=0.3, dry_multiplier=0.5)
    plain = generate(begin_engine(kind, speculate=False), PROMPT, settings)
    engine = begin_engine(kind, block_tokens=8)
    asked = ask_with_drafts(engine, settings, PROMPT + plain)
    assert asked.finish() == plain
    stats = engine.stats
    assert 30 < stats.accepted_tokens < stats.drafted_tokens
    assert engine.caches.space.pools[0].used == 0


@pytest.mark.parametrize("kind", KINDS)
def test_repetitions_are_drafted(kind: str) -> None:
    settings = replace(GREEDY, max_tokens=60, logit_bias=((5, 100.0),))
    engine = begin_engine(kind)
    assert generate(engine, PROMPT, settings) == [5] * 60
    # No draft crosses the switch of rope factors at 40 tokens.
    assert engine.stats.accepted_tokens > (35 if kind == "longrope" else 45)


class Asking:
    """Drafts nothing, and remembers how long the text was and how much was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def draft(self, token_ids: Sequence[int], most_tokens: int) -> list[int]:
        self.asked.append((len(token_ids), most_tokens))
        return []


def test_the_last_token_of_a_reply_is_not_drafted() -> None:
    """It is chosen after the draft, which costs a row less."""
    engine = begin_engine("dense")
    asked, lookup = Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=4)), Asking()
    asked.sequence.lookup = lookup  # type: ignore[assignment]
    asked.finish()
    assert lookup.asked == [(len(PROMPT) + 1, 2), (len(PROMPT) + 2, 1)]


def test_no_drafts_where_keys_depend_on_the_length() -> None:
    settings = replace(GREEDY, max_tokens=30, logit_bias=((5, 100.0),))
    engine = begin_engine("dynamic")
    assert generate(engine, PROMPT * 4, settings) == [5] * 30
    assert engine.stats.drafted_tokens == 0


def test_chosen_tokens_are_distributed_as_without_drafts() -> None:
    """Pairs of tokens after a draft, against their probabilities in float64."""
    rows = np.random.default_rng(0).normal(0, 1.2, (2, 6)).astype(np.float32)
    weights = np.exp(rows.astype(np.float64))
    first, second = weights / weights.sum(axis=1, keepdims=True)
    sampling = Sampling(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0)
    count, pairs = 6000, Counter[tuple[int, ...]]()
    for seed in range(count):
        sampler = Sampler(sampling, [1], 6, random.Random(seed))
        sequence = EngineSequence([1], 1, 99, sampler, draft=[2])
        pairs[tuple(token.id for token in choose_tokens(sequence, rows.copy()))] += 1
    expected = {(t,): p for t, p in enumerate(first) if t != 2}
    expected |= {(2, t): first[2] * p for t, p in enumerate(second)}
    assert set(pairs) <= set(expected)
    for pair, share in expected.items():
        deviation = (share * (1 - share) / count) ** 0.5
        assert abs(pairs[pair] / count - share) < 4 * deviation, pair


class Forcing:
    """A grammar that forces token 4 after token 3, and ends after token 9."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, logits: np.ndarray) -> None:
        """Allows everything."""

    def append(self, token: int) -> None:
        self.last = token

    @property
    def is_complete(self) -> bool:
        return self.last == 9

    def forced_tokens(self) -> list[int]:
        return [4] if self.last == 3 else []

    def num_allowed(self, tokens: list[int]) -> int:
        return len(tokens)


@pytest.mark.parametrize(
    ("draft", "largest", "chosen"),
    [
        ([1, 2], [1, 2, 7], [1, 2, 7]),
        ([1, 2], [1, 5, 7], [1, 5]),
        ([3, 4, 6], [3, 0, 6, 7], [3, 4, 6, 7]),  # the row after 3 is not needed
        ([3, 5, 6], [3, 0, 6, 7], [3, 4]),
        ([3], [3, 0], [3, 4]),
        ([9, 1], [9, 1, 2], [9]),
        ([8, 1], [8, 1, 2], [8]),  # a stop id
        ([1, 1, 1], [1, 1, 1, 1], [1, 1, 1]),  # the most tokens
    ],
)
def test_rows_count_while_the_draft_is_chosen(
    draft: list[int], largest: list[int], chosen: list[int]
) -> None:
    rows = np.eye(10, dtype=np.float32)[largest]
    sampler = Sampler(GREEDY, [1], 10, random.Random(), constraint=Forcing())
    limit = 4 if draft == [1, 1, 1] else 99
    sequence = EngineSequence([1], 1, limit, sampler, frozenset({8}), draft=draft)
    assert [token.id for token in choose_tokens(sequence, rows)] == chosen
    assert sequence.token_ids == [1, *chosen]
    assert sequence.is_finished == (chosen[-1] in (8, 9) or len(chosen) == 3 == limit - 1)


def test_a_reply_ends_within_a_draft() -> None:
    plain = generate(begin_engine("dense", speculate=False), PROMPT, replace(GREEDY, max_tokens=40))
    for most in range(1, 12):
        engine = begin_engine("dense", prefix_cache_n=4)
        settings = replace(GREEDY, max_tokens=most)
        asked = ask_with_drafts(engine, settings, PROMPT + plain)
        assert asked.finish() == plain[:most]
        assert asked.sequence.finish_reason == "length"
        # The prefix cache has the accepted tokens, and goes on from them.
        text = PROMPT + plain[:most]
        again = Asked.of(engine, text, replace(GREEDY, max_tokens=5))
        assert again.finish() == plain[most : most + 5]
        assert again.sequence.num_cached_tokens == len(text) - 1


def test_an_error_within_a_draft_comes_after_the_tokens_before_it() -> None:
    engine = begin_engine("dense", speculate=False)
    plain = generate(engine, PROMPT, replace(GREEDY, max_tokens=20))

    class Failing(Forcing):
        count = 0

        def append(self, token: int) -> None:
            self.count += 1
            if self.count == 8:
                raise RuntimeError("the grammar failed")

    for speculate in (False, True):
        engine = begin_engine("dense", speculate=speculate, prefix_cache_n=4)
        asked = Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=20))
        asked.sequence.sampler.processors.append(Failing())
        if speculate:
            asked.sequence.lookup = HalfRight(PROMPT + plain)  # type: ignore[assignment]
        outputs = [output for _ in range(20) for output in engine.step()]
        assert [each.token.id for each in outputs if each.token] == plain[:7]
        assert str(asked.sequence.error) == "the grammar failed"
        assert engine.stats[:2] == (0, 0)
        assert generate(engine, PROMPT, replace(GREEDY, max_tokens=20)) == plain


def test_an_aborted_step_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = generate(
        begin_engine("window", speculate=False), PROMPT, replace(GREEDY, max_tokens=40)
    )
    engine = begin_engine("window")
    asked = ask_with_drafts(engine, replace(GREEDY, max_tokens=40), PROMPT + plain)
    decoder, fails = engine._worker._decoder, 0
    layer = type(decoder.stack.layers[-1])
    forward = layer.__call__

    def interrupted(self, *arguments):
        nonlocal fails
        if self is decoder.stack.layers[-1] and arguments[0].shape[0] > 1:
            fails += 1
            if fails % 2:
                raise KeyboardInterrupt
        return forward(self, *arguments)

    monkeypatch.setattr(layer, "__call__", interrupted)
    while not asked.sequence.is_finished:
        try:
            engine.step()
        except KeyboardInterrupt:
            assert asked.sequence.draft == []
    assert asked.finish() == plain
    assert fails > 5


def test_many_sequences_have_shorter_drafts_or_none() -> None:
    """A step computes at most MAX_DRAFT_ROWS tokens of sequences that decode."""
    settings = replace(GREEDY, max_tokens=25, logit_bias=((5, 100.0),))
    for count in (1, 2, 5, 9):
        engine = begin_engine("dense", max_seqs=16, planned_seqs=16, chunk_tokens=64)
        asked = [Asked.of(engine, PROMPT, settings) for _ in range(count)]
        steps: list[tuple[int, int]] = []
        forward = engine._worker.forward

        def counted(batch, forward=forward, steps=steps):
            if all(sequence.num_new_tokens for sequence, _ in batch):
                steps.append((len(batch), sum(num_tokens for _, num_tokens in batch)))
            return forward(batch)

        engine._worker.forward = counted
        for each in asked:
            assert each.finish() == [5] * 25
        assert max(steps)[0] == count
        assert all(rows <= MAX_DRAFT_ROWS for _, rows in steps)
        assert all(
            rows == sequences for sequences, rows in steps if sequences > MAX_DRAFT_ROWS // 2
        )
        assert engine.stats.drafted_tokens > 0


def test_a_full_pool_has_no_drafts() -> None:
    """Two sequences outgrow a pool together: their drafts take no blocks that are not there."""
    settings = replace(GREEDY, max_tokens=70, logit_bias=((5, 100.0),))
    engine = begin_engine(
        "dense", block_tokens=8, pool_blocks=16, max_seqs=2, planned_seqs=2, prefix_cache_n=4
    )
    asked = [Asked.of(engine, PROMPT, settings) for _ in range(2)]
    for each in asked:
        assert each.finish() == [5] * 70
    assert engine.caches.space.pools[0].count == 16
    assert engine.stats.accepted_tokens > 0
    assert engine.stats.preempted > 0


def test_lookup_finds_the_longest_and_latest_occurrence() -> None:
    lookup = PromptLookup()
    assert lookup.draft([1, 2, 3], 5) == []
    text = [1, 2, 3, 4, 5, 0, 2, 3, 4, 6, 7, 8, 0, 1, 2, 3, 4]
    assert lookup.draft(text, 2) == [5, 0]  # after 1 2 3 4, although 2 3 4 came later
    assert lookup.draft([*text, 6, 7, 8], 2) == [0, 1]
    assert PromptLookup().draft([1, 2, 9, 1, 2], 5) == []  # two tokens are too few
    assert PromptLookup().draft([4, 5, 6, 5, 6, 5, 6, 5], 3) == [6, 5, 6]


def test_drafts_grow_with_success_and_stop_without() -> None:
    lookup = PromptLookup()
    text = [*range(100, 140), 0, *range(100, 104)]
    lengths = []
    for _ in range(4):
        lengths.append(len(lookup.draft(text, 99)))
        lookup.learn(lengths[-1], lengths[-1])
    assert lengths == [3, 7, 15, 15]
    lookup.learn(15, 4)
    assert len(lookup.draft(text, 99)) == 7  # as many as are computed together
    lookup.learn(7, 0)
    assert lookup.draft(text, 99) == []  # an occurrence of 4 tokens is no longer enough
    assert lookup.draft([*text, 104, 105], 99) == [106, 107, 108]
