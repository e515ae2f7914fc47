"""Bursts: a sequence that is alone has several steps at once, with the tokens of single steps."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from mrs.engine.engine import Engine
from mrs.engine.loop import EngineLoop
from mrs.engine.sequence import SequenceRequest, TokenOutput
from mrs.kernels.cpu.library import is_available
from mrs.model.decoder import Decoder
from mrs.model.native_layers import NativeSteps
from support.engines import Asked, generate, make_engine
from support.tiny_decoders import (
    GREEDY,
    MIXED_CONFIGS,
    PACKED_CONFIGS,
    WARM,
    mixed_decoder,
    packed_decoder,
)
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(not is_available(), reason="the native kernels were not built")

PROMPT = [7, 8, 9, 10, 11]
MIXED_KINDS = ("capped", "chosen")
KINDS = ["dense", "window", "norms around", "one latent", "states", "two mixers", "capped"]
#: More than lengths and positions differ from token to token, or torch computes a part.
_SCALED = PACKED_CONFIGS["scaled queries"]
STEP_BY_STEP = {
    "rope of the length": PACKED_CONFIGS["dynamic"],
    "chunks": {**_SCALED, "attn_temperature_tuning": False},
    "scales of positions": {**_SCALED, "attention_chunk_size": None},
    "partly torch": PACKED_CONFIGS["odd latent"],
}
_CHOSEN = {**MIXED_CONFIGS["chosen keys"], "indexer_types": ["full"] * 3}


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst is as long as it may be, however slow the machine is."""
    monkeypatch.setattr("mrs.engine.engine.BURST_S", 1e9)


def always() -> bool:
    return True


def never() -> bool:
    return False


def begin_engine(kind: str | Decoder = "dense", **settings: object) -> Engine:
    decoder = packed_decoder(kind) if isinstance(kind, str) else kind
    limits = {"planned_tokens": 200, "context_tokens": 200, "block_tokens": 16, "seed": 3}
    return make_engine(decoder, **(limits | settings))


def finish(
    asked: Asked, may_go_on: Callable[[], bool] = always, most_steps: int = 200
) -> list[list[TokenOutput]]:
    """The outputs of each step until the sequence is finished."""
    outputs: list[list[TokenOutput]] = []
    while not asked.sequence.is_finished:
        assert len(outputs) < most_steps
        outputs.append(asked.engine.step(may_go_on))
    return outputs


def tokens_of(outputs: list[list[TokenOutput]]) -> list[int]:
    return [each.token.id for step in outputs for each in step if each.token]


def sizes_of(outputs: list[list[TokenOutput]]) -> list[int]:
    return [len(step) for step in outputs]


@pytest.mark.few(5)
@pytest.mark.parametrize("kind", [*KINDS, *STEP_BY_STEP, "chosen"])
def test_tokens_and_probabilities_are_those_of_single_steps(kind: str) -> None:
    """The reply crosses blocks of 16 tokens, the end of a window, and logits are capped."""
    with patch.dict(PACKED_CONFIGS, STEP_BY_STEP), patch.dict(MIXED_CONFIGS, chosen=_CHOSEN):
        is_mixed = kind in MIXED_KINDS
        decoder = mixed_decoder(kind, "Q8_0") if is_mixed else packed_decoder(kind)
    sampling = replace(WARM, max_tokens=40, logprobs=2, frequency_penalty=0.3)
    replies = []
    for may_go_on in (always, never):
        engine = begin_engine(decoder)
        outputs = finish(Asked.of(engine, PROMPT, sampling), may_go_on)
        is_short = may_go_on is always and kind in KINDS
        assert len(outputs) == (8 if is_short else 40)
        assert engine.stats.computed_tokens == len(PROMPT) + 39
        assert engine.caches.space.pools[0].used == 0
        replies.append([each.token for step in outputs for each in step])
    assert replies[0] == replies[1]


def test_the_first_bursts_are_short_and_all_end_with_a_block() -> None:
    engine = begin_engine()
    outputs = finish(Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=40)))
    # With the 5 tokens of the prompt, blocks end after the fifth burst and the seventh.
    assert sizes_of(outputs) == [1, 1, 2, 4, 4, 12, 4, 12]


@pytest.mark.parametrize("most", [9, 14, 23])
def test_a_burst_ends_with_the_reply(most: int) -> None:
    plain = generate(begin_engine(), PROMPT, replace(GREEDY, max_tokens=60))
    asked = Asked.of(begin_engine(), PROMPT, replace(GREEDY, max_tokens=most))
    assert tokens_of(finish(asked)) == plain[:most]
    assert asked.sequence.finish_reason == "length"


def test_a_stop_id_ends_a_burst() -> None:
    sampling = replace(WARM, max_tokens=60)
    plain = generate(begin_engine(), PROMPT, sampling)
    stop = next(n for n in range(20, 27) if plain[n] not in plain[:n])
    engine = begin_engine(prefix_cache_n=4)
    asked = Asked.of(engine, PROMPT, sampling, stop_ids=frozenset({plain[stop]}))
    outputs = finish(asked)
    assert tokens_of(outputs) == plain[: stop + 1]
    assert outputs[-1][-1].finish_reason == "stop"
    assert len(outputs[-1]) < 16
    # The prefix cache goes on from all that was computed.
    again = Asked.of(engine, PROMPT + plain[: stop + 1], replace(GREEDY, max_tokens=5))
    expected = generate(begin_engine(), PROMPT + plain[: stop + 1], replace(GREEDY, max_tokens=5))
    assert again.finish() == expected
    assert again.sequence.num_cached_tokens == len(PROMPT) + stop


class Times:
    """Says yes until it is asked for the last of so many times."""

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self) -> bool:
        self._left -= 1
        return self._left > 0


def long_reply(engine: Engine, num_tokens: int = 12) -> Asked:
    """A reply of so many tokens so far, so that the next burst may be long."""
    asked = Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=60))
    while asked.sequence.num_new_tokens < num_tokens:
        asked.advance()
    return asked


def test_a_request_that_comes_within_a_burst_is_in_the_next_step() -> None:
    plain = generate(begin_engine(), PROMPT, replace(GREEDY, max_tokens=60))
    other = generate(begin_engine(), [3, 4], replace(GREEDY, max_tokens=20))
    engine = begin_engine(max_seqs=2, planned_seqs=2)
    first = long_reply(engine)
    assert len(engine.step(Times(4))) == 3
    second = Asked.of(engine, [3, 4], replace(GREEDY, max_tokens=20))
    outputs = engine.step(always)
    assert {each.sequence for each in outputs} == {first.sequence, second.sequence}
    outputs = engine.step(always)
    assert len(outputs) == 2, "bursts are for a sequence that is alone"
    finish(second)
    finish(first)
    assert (first.finish(), second.finish()) == (plain, other)


def test_there_are_no_bursts_while_others_wait() -> None:
    engine = begin_engine(max_seqs=1)
    long_reply(engine)
    Asked.of(engine, [3, 4], replace(GREEDY, max_tokens=20))
    assert len(engine.step(always)) == 1


@pytest.mark.parametrize(("owed_s", "is_burst"), [(1e9, True), (1e-9, False)])
def test_there_are_bursts_while_all_others_sit_out_steps(owed_s: float, is_burst: bool) -> None:
    """They end once one of the others has paid for what it took."""
    first, second = ("", "first"), ("", "second")
    engine = begin_engine(max_seqs=2, planned_seqs=2)
    request = SequenceRequest(PROMPT, replace(GREEDY, max_tokens=60), client=first)
    reply = Asked(engine, engine.add(request))
    while reply.sequence.num_new_tokens < 12:
        reply.advance()
    other = engine.add(SequenceRequest([3] * 20, replace(GREEDY, max_tokens=20), client=second))
    engine.step(always)
    own_time = engine.scheduler.own_time
    own_time.resting([first, second])
    own_time.settle({first: 0.0, second: owed_s}, owed_s / 2)
    place = other.num_computed_tokens
    outputs = engine.step(always)
    assert {each.sequence for each in outputs} == {reply.sequence}
    assert other.num_computed_tokens == place
    assert (len(outputs) > 1) is is_burst
    own_time.settle({}, 1e9)
    finish(reply)
    assert reply.finish() == generate(begin_engine(), PROMPT, replace(GREEDY, max_tokens=60))


def test_a_reply_that_is_aborted_within_a_burst_ends_after_the_step() -> None:
    engine = begin_engine(prefix_cache_n=4)
    plain = generate(engine, PROMPT, replace(GREEDY, max_tokens=60))
    engine.caches.drop_prefixes()
    asked = long_reply(engine)
    outputs = engine.step(Aborting(asked, 3))
    assert len(outputs) == 3
    assert engine.step(always)[0].finish_reason == "cancelled"
    assert asked.sequence.token_ids == PROMPT + plain[:15]
    assert engine.stats.running == 0
    assert generate(engine, PROMPT, replace(GREEDY, max_tokens=60)) == plain


class Aborting:
    """Lets a sequence be aborted while its burst computes a step."""

    def __init__(self, asked: Asked, steps: int) -> None:
        self._asked, self._left = asked, steps

    def __call__(self) -> bool:
        self._left -= 1
        if not self._left:
            self._asked.sequence.abort()
        return True


def test_a_burst_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 10 ms of 45: the fifth would end too late."""
    now_s = [0.0]
    step, forward = NativeSteps.next, Decoder.steps

    def slow_step(self, token):
        now_s[0] += 0.01
        step(self, token)

    def slow_start(self, *arguments, **settings):
        now_s[0] += 0.01
        return forward(self, *arguments, **settings)

    monkeypatch.setattr(NativeSteps, "next", slow_step)
    monkeypatch.setattr(Decoder, "steps", slow_start)
    monkeypatch.setattr("mrs.engine.engine.BURST_S", 0.045)
    engine = begin_engine()
    asked = long_reply(engine)
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    outputs = engine.step(always)
    assert [round(each.time_s, 3) for each in outputs] == [0.01, 0.02, 0.03, 0.04]
    assert not asked.sequence.is_finished


@pytest.mark.parametrize("kind", ["dense", "window", "states"])
def test_a_failed_step_ends_the_reply_after_the_tokens_before_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = generate(begin_engine(kind), PROMPT, replace(GREEDY, max_tokens=30))
    engine = begin_engine(kind, prefix_cache_n=4)
    asked = long_reply(engine)
    step, count = NativeSteps.next, Times(3)

    def failing(self, token):
        step(self, token)
        if not count():
            raise MemoryError("no memory")

    monkeypatch.setattr(NativeSteps, "next", failing)
    outputs = engine.step(always)
    assert [each.token and each.token.id for each in outputs] == [*plain[12:15], None]
    assert isinstance(asked.sequence.error, MemoryError)
    monkeypatch.setattr(NativeSteps, "next", step)
    # Nobody goes on from a state that the failed step has changed.
    again, text = replace(GREEDY, max_tokens=5), PROMPT + plain[:15]
    assert generate(engine, text, again) == generate(begin_engine(kind), text, again)


def test_logits_that_are_no_numbers_end_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = begin_engine()
    asked = long_reply(engine)
    logits, count = NativeSteps.logits, Times(3)

    def damaged(self):
        values = logits(self)
        return values if count() else np.full_like(values, np.nan)

    monkeypatch.setattr(NativeSteps, "logits", damaged)
    assert len(engine.step(always)) == 3
    assert "no probabilities" in str(asked.sequence.error)


class LateDrafts:
    """Drafts the tokens of a known text, but none before the text has so many."""

    def __init__(self, text: list[int], first: int) -> None:
        self._text, self._first = text, first

    def draft(self, token_ids: list[int], most_tokens: int) -> list[int]:
        length = len(token_ids)
        return self._text[length : length + most_tokens] if length >= self._first else []

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


def test_a_burst_ends_where_a_draft_begins() -> None:
    plain = generate(begin_engine(), PROMPT, replace(GREEDY, max_tokens=60))
    engine = begin_engine(speculate=True)
    asked = Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=60))
    asked.sequence.lookup = LateDrafts(PROMPT + plain, len(PROMPT) + 15)  # type: ignore[assignment]
    outputs = finish(asked)
    assert tokens_of(outputs) == plain
    assert sizes_of(outputs)[:6] == [1, 1, 2, 4, 4, 3]
    assert asked.sequence.drafts.accepted_tokens > 30


def test_there_are_bursts_between_drafts() -> None:
    engine = begin_engine(speculate=True)
    outputs = finish(Asked.of(engine, PROMPT, replace(WARM, max_tokens=40)))
    plain = generate(begin_engine(), PROMPT, replace(WARM, max_tokens=40))
    assert tokens_of(outputs) == plain
    assert max(sizes_of(outputs)) > 4


class Forcing:
    """A grammar whose token after each seven is 3, which forces 4 twice."""

    def __init__(self) -> None:
        self._last, self._count = 0, 0

    def __call__(self, logits: np.ndarray) -> None:
        self._count += 1
        if self._count % 8 == 0:
            logits[3] = 1e6

    def append(self, token: int) -> None:
        self._last = token

    is_complete = False

    def forced_tokens(self) -> list[int]:
        return [4, 4] if self._count % 8 == 0 and self._last == 3 else []

    def num_allowed(self, tokens: list[int]) -> int:
        return len(tokens)


def test_a_burst_ends_with_forced_tokens() -> None:
    """The next step computes them together."""
    replies = []
    for may_go_on in (always, never):
        engine = begin_engine()
        sampling = replace(WARM, max_tokens=40, frequency_penalty=0.3)
        request = SequenceRequest(PROMPT, sampling, constraint=Forcing())
        replies.append(tokens_of(finish(Asked(engine, engine.add(request)), may_go_on)))
    assert replies[0] == replies[1]
    assert replies[0][7:10] == replies[0][17:20] == [3, 4, 4]


def test_a_reply_with_an_adapter_has_no_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = begin_engine()
    monkeypatch.setattr(engine._worker._decoder, "adapter_ids", {"tuned": 0})
    outputs = finish(Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=20, adapter="tuned")))
    assert sizes_of(outputs) == [1] * 20


@pytest.mark.parametrize(("least_rows", "last_rows"), [(18, 72), (39, 39)])
def test_the_table_of_angles_has_the_positions_of_a_whole_burst(
    least_rows: int, last_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not those after the context, of which no memory was planned."""
    monkeypatch.setattr("mrs.layers.rope.memory.LEAST_ROWS", least_rows)
    engine = begin_engine(context_tokens=40, planned_tokens=40, block_tokens=64)
    outputs = finish(Asked.of(engine, PROMPT, GREEDY))
    assert sizes_of(outputs) == [1, 1, 2, 4, 8, 16, 3]
    assert tokens_of(outputs) == generate(begin_engine(), PROMPT, replace(GREEDY, max_tokens=35))
    assert engine._worker._decoder.reserve_positions(0) == (last_rows,)


def test_a_burst_without_a_lasting_cache_has_one_step() -> None:
    engine = begin_engine(kv_cache=False)
    outputs = finish(Asked.of(engine, PROMPT, replace(GREEDY, max_tokens=20)))
    assert sizes_of(outputs) == [1] * 20


def test_blocks_are_as_full_as_they_were_written() -> None:
    """Or else a sequence that shares the last block would copy it without need."""
    engine = begin_engine(prefix_cache_n=4)
    long_reply(engine)
    pool = engine.caches.space.pools[0]
    assert len(engine.step(Times(6))) == 5
    [table] = engine.scheduler.running[0].cache.tables
    assert [pool.filled[block] for block in table.row()] == [16, 5]
    used = pool.used
    engine.step()
    assert pool.used == used


def test_a_new_request_ends_the_burst_of_another_thread() -> None:
    """The engine's thread is within a burst when a second request comes."""
    engine = begin_engine(max_seqs=2, planned_seqs=2, context_tokens=200)
    reached, submitted, count = threading.Event(), threading.Event(), itertools.count(1)
    step, sizes = NativeSteps.next, list[int]()

    def waiting(self, token):
        if next(count) == 9:  # the second after the first of a burst of 12 steps
            reached.set()
            assert submitted.wait(PATIENCE_S)
        step(self, token)

    plain = engine.step

    def counted(may_go_on):
        outputs = plain(may_go_on)
        sizes.append(len(outputs))
        return outputs

    engine.step = counted
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NativeSteps, "next", waiting)
        loop = EngineLoop(engine)
        first = loop.submit(SequenceRequest(PROMPT, replace(GREEDY, max_tokens=60)))
        assert reached.wait(PATIENCE_S)
        burst = len(sizes)
        second = loop.submit(SequenceRequest([3, 4], replace(GREEDY, max_tokens=2)))
        submitted.set()
        assert len(list(second)) == 2
        assert sizes[burst : burst + 2] == [3, 2], "three tokens, then one of each"
        assert len(list(first)) == 60
        loop.close()
