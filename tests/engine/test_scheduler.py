"""The scheduler alone, with caches that only count."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable

import pytest

from mrs.engine.scheduler import MAX_OVERTAKEN, ScheduledBatch, Scheduler
from mrs.engine.sequence import QueueFull, Sequence
from mrs.engine.step_budget import StepBudget
from mrs.process.turns import Client


class CountingCaches:
    """Space for `tokens`; a set of numbers of those that compute what others wait for."""

    def __init__(self, tokens: int = 10**6) -> None:
        self.tokens = tokens
        self.awaited: set[int] = set()

    def can_allocate(self, sequences: Iterable[Sequence]) -> bool:
        return sum(len(each.token_ids) for each in sequences) <= self.tokens

    def allocate(self, sequence: Sequence) -> None:
        sequence.cache = object()
        sequence.num_computed_tokens = 0

    def free(self, sequence: Sequence) -> None:
        sequence.cache, sequence.num_computed_tokens = None, 0

    def is_prefix_being_computed(self, sequence: Sequence, other: Sequence) -> bool:
        return other.arrival in self.awaited


def make(caches: CountingCaches, **settings: int) -> Scheduler:
    budget = StepBudget(settings.pop("step_tokens", 16))
    return Scheduler(caches, **{"max_seqs": 8, "budget": budget, **settings})


def add(scheduler: Scheduler, num_tokens: int, num_new: int = 100, client: Client = ()) -> Sequence:
    sequence = Sequence(
        [1] * num_tokens, num_tokens, num_tokens + num_new, sampler=None, client=client
    )
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler) -> ScheduledBatch:
    """Pretend to compute what is scheduled, and to choose a token for what is complete."""
    batch = scheduler.schedule()
    for sequence, num_tokens in batch:
        sequence.num_computed_tokens += num_tokens
        assert sequence.num_computed_tokens <= len(sequence.token_ids)
        if sequence.is_computed:
            sequence.token_ids.append(2)
            if len(sequence.token_ids) >= sequence.max_length:
                sequence.finish("length")
                scheduler.remove(sequence)
    return batch


def shares(batch: ScheduledBatch) -> dict[int, int]:
    return {sequence.arrival: num_tokens for sequence, num_tokens in batch}


def test_prompts_take_what_decoding_leaves() -> None:
    scheduler = make(CountingCaches())
    add(scheduler, 5)
    assert shares(step(scheduler)) == {0: 5}
    add(scheduler, 40)
    add(scheduler, 3)
    assert shares(step(scheduler)) == {0: 1, 1: 15}
    assert shares(step(scheduler)) == {0: 1, 1: 15}
    # The rest of the one and the other in one step.
    assert shares(step(scheduler)) == {0: 1, 1: 10, 2: 3}
    assert shares(step(scheduler)) == {0: 1, 1: 1, 2: 1}


def test_decoding_leaves_half_of_a_step_for_prompts() -> None:
    scheduler = make(CountingCaches(), max_seqs=100)
    for _ in range(30):
        add(scheduler, 1)
    assert [len(step(scheduler)) for _ in range(3)] == [8, 8, 8]


def test_the_youngest_is_preempted_and_comes_back_first() -> None:
    scheduler = make(CountingCaches(30))
    sequences = [add(scheduler, 9, num_new=5) for _ in range(3)]
    add(scheduler, 25)
    while not sequences[0].is_finished:
        step(scheduler)
    assert [each.num_preemptions for each in sequences] == [0, 0, 1]
    assert scheduler.num_preempted == 1
    assert [each.arrival for each in scheduler.waiting] == [2, 3]
    assert scheduler.running == [sequences[1]]
    step(scheduler)
    assert scheduler.running[-1:] == sequences[2:]


def test_one_that_alone_outgrows_its_space_runs() -> None:
    scheduler = make(CountingCaches(10))
    sequence = add(scheduler, 20, num_new=5)
    for _ in range(7):
        step(scheduler)
    assert sequence.is_finished
    assert not scheduler.running
    assert not scheduler.waiting


def test_small_ones_pass_one_that_has_no_space_but_not_for_ever() -> None:
    scheduler = make(CountingCaches(100))
    add(scheduler, 60, num_new=10**6)
    for _ in range(4):
        step(scheduler)
    scheduler.running[0].max_length = len(scheduler.running[0].token_ids) + 100
    large = add(scheduler, 50, num_new=1)
    small = [add(scheduler, 2, num_new=2) for _ in range(30)]
    for _ in range(10**4):
        step(scheduler)
        if large.is_computed or large.is_finished:
            break
    assert large.is_finished
    passed = [each for each in small if each.num_computed_tokens > 0]
    assert large.num_overtaken == MAX_OVERTAKEN == len(passed) - len(scheduler.running)


def test_one_whose_prefix_is_being_computed_lets_others_pass() -> None:
    caches = CountingCaches()
    scheduler = make(caches)
    caches.awaited = {0}
    add(scheduler, 20)
    assert shares(step(scheduler)) == {0: 16}
    add(scheduler, 3)
    assert shares(step(scheduler)) == {0: 4}  # it would wait for all that reads a prompt
    assert shares(step(scheduler)) == {0: 1, 1: 3}


def test_as_many_wait_as_may() -> None:
    scheduler = make(CountingCaches(), max_waiting=2)
    for _ in range(2):
        add(scheduler, 2)
    with pytest.raises(QueueFull, match="2 requests"):
        add(scheduler, 2)
    step(scheduler)
    add(scheduler, 2)


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_ends_within_the_budget(seed: int) -> None:
    """However many come, in whatever order and with whatever space."""
    chance = random.Random(seed)
    caches = CountingCaches(chance.randint(30, 200))
    scheduler = make(caches, max_seqs=chance.randint(1, 12), step_tokens=chance.randint(2, 24))
    sequences = []
    for _ in range(300):
        if chance.random() < 0.2:
            sequences.append(add(scheduler, chance.randint(1, 60), chance.randint(1, 20)))
        if sequences:
            caches.awaited = {chance.choice(sequences).arrival}
        batch = step(scheduler)
        assert sum(num_tokens for _, num_tokens in batch) <= scheduler.budget.step_tokens
        assert len({id(sequence) for sequence, _ in batch}) == len(batch)
        assert scheduler.waiting == sorted(scheduler.waiting, key=lambda each: each.arrival)
        assert all(each.num_overtaken <= MAX_OVERTAKEN for each in sequences)
    caches.awaited = set()
    while scheduler.running or scheduler.waiting:
        assert step(scheduler)
    assert all(each.finish_reason == "length" for each in sequences)


def test_it_needs_no_torch() -> None:
    program = "import sys, mrs.engine.scheduler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


BUSY, NEIGHBOUR = ("key", "busy"), ("key", "neighbour")


def test_a_neighbours_prompt_is_computed_before_a_hundred_others() -> None:
    scheduler = make(CountingCaches())
    for _ in range(100):
        add(scheduler, 400, client=BUSY)
    step(scheduler)
    mine = add(scheduler, 5, client=NEIGHBOUR)
    assert shares(step(scheduler)) == {mine.arrival: 5, 0: 11}
    assert shares(step(scheduler)) == {mine.arrival: 1, 0: 15}


def test_long_prompts_of_two_clients_are_computed_in_turns() -> None:
    scheduler = make(CountingCaches())
    for _ in range(3):
        add(scheduler, 48, num_new=1, client=BUSY)
    for _ in range(2):
        add(scheduler, 48, num_new=1, client=NEIGHBOUR)
    found = [next(iter(shares(step(scheduler)))) for _ in range(6)]
    assert found == [0, 3, 0, 3, 0, 3]


def test_the_next_free_sequence_is_the_neighbours() -> None:
    scheduler = make(CountingCaches(), max_seqs=2)
    crowd = [add(scheduler, 2, num_new=3, client=BUSY) for _ in range(100)]
    for _ in range(2):
        step(scheduler)
    mine = add(scheduler, 2, num_new=1, client=NEIGHBOUR)
    for _ in range(2):
        step(scheduler)
    assert [each.is_finished for each in crowd[:4]] == [True, True, False, False]
    assert mine.is_finished
    while scheduler.running or scheduler.waiting:
        step(scheduler)
    assert all(each.is_finished for each in crowd)


def test_a_large_sequence_of_a_busy_client_starts_in_the_end() -> None:
    scheduler = make(CountingCaches(tokens=60), max_seqs=4)
    add(scheduler, 8, num_new=40, client=BUSY)
    step(scheduler)
    large = add(scheduler, 55, num_new=1, client=BUSY)
    for _ in range(60):
        add(scheduler, 2, num_new=2, client=NEIGHBOUR)
        step(scheduler)
    while large.started_s is None and step(scheduler):
        pass
    assert large.num_overtaken <= MAX_OVERTAKEN
    while not large.is_finished:
        assert step(scheduler)


STRANGER = ("other key", "stranger")


def started(*sequences: Sequence) -> list[bool]:
    return [each.cache is not None for each in sequences]


def test_long_replies_of_one_client_leave_a_place_to_one_that_has_none() -> None:
    scheduler = make(CountingCaches(), max_seqs=4)
    crowd = [add(scheduler, 2, num_new=10**6, client=BUSY) for _ in range(6)]
    step(scheduler)
    mine = [add(scheduler, 2, num_new=20, client=NEIGHBOUR) for _ in range(3)]
    step(scheduler)
    assert started(*crowd[:4], *mine) == [True, True, True, False, True, False, False]
    theirs = add(scheduler, 2, num_new=20, client=STRANGER)
    step(scheduler)
    assert started(*crowd[:4], *mine, theirs)[1:] == [True, False, False, True, False, False, True]
    assert [each.num_preemptions for each in crowd] == [0, 0, 1, 1, 0, 0]
    for _ in range(100):
        step(scheduler)
    assert all(each.is_finished for each in [*mine, theirs])
    assert [len(each.token_ids) > 20 for each in crowd] == [True] * 4 + [False] * 2
    assert scheduler.num_preempted == 2


def test_clients_that_have_a_reply_each_keep_it() -> None:
    scheduler = make(CountingCaches(), max_seqs=2)
    for client in (BUSY, NEIGHBOUR):
        add(scheduler, 2, num_new=20, client=client)
    step(scheduler)
    others = [add(scheduler, 2, client=("key", number)) for number in range(40)]
    for _ in range(10):
        step(scheduler)
    assert started(*others) == [False] * 40
    assert scheduler.num_preempted == 0


def test_a_client_that_has_none_gets_the_memory_of_who_has_most() -> None:
    scheduler = make(CountingCaches(100))
    crowd = [add(scheduler, 9, num_new=10**6, client=BUSY) for _ in range(8)]
    for _ in range(20):
        step(scheduler)
    mine = add(scheduler, 15, num_new=10, client=NEIGHBOUR)
    for _ in range(12):
        step(scheduler)
        assert mine.num_preemptions == 0
    assert mine.is_finished
    assert crowd[0].num_preemptions == 0


def awaited_step(scheduler: Scheduler, *clients: Client) -> int:
    """The tokens of the prompt of the last client, after the others came and went."""
    for each in clients[:-1]:
        scheduler.remove(add(scheduler, 5, client=each))
    sequence = add(scheduler, 4000, client=clients[-1])
    return shares(step(scheduler))[sequence.arrival]


def test_a_prompt_takes_short_steps_while_others_may_come() -> None:
    def scheduler() -> Scheduler:
        budget = StepBudget(2048, 0.2, 1000.0)
        return Scheduler(CountingCaches(), max_seqs=8, budget=budget)

    assert awaited_step(scheduler(), ("one",), ("other",)) == 170
    assert awaited_step(scheduler(), ("one",), ("one",)) == 1360
    assert awaited_step(scheduler(), ("one",)) == 1360


def test_a_client_that_left_long_ago_shortens_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.engine.scheduler.RECENT_S", 0.0)
    scheduler = Scheduler(CountingCaches(), max_seqs=8, budget=StepBudget(2048, 0.2, 1000.0))
    assert awaited_step(scheduler, ("one",), ("other",)) == 1360
