"""The draft head of the demo model: it guesses well, and replies are those without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from demo_training.text.dialogues import dialogue
from mrs.engine.draft_burst import DraftBurst
from mrs.engine.draft_head import DraftHead
from mrs.engine.draft_pace import DraftPace
from mrs.engine.engine import Engine
from mrs.engine.sequence import Sequence, SequenceRequest
from mrs.kernels.cpu.library import is_available
from mrs.model.native_layers import NativeSteps
from mrs.plan.speed.draft_gain import DraftCost
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader
from support.draft_pace import let_steps_take_as_planned
from support.model_files import DEMO, DEMO_HEAD
from support.tiny_decoders import GREEDY, WARM

#: So drafts are as long as there is room for.
CHEAP = DraftCost(0.05)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    folder = tmp_path_factory.mktemp("demo")
    for path in (*DEMO.iterdir(), *DEMO_HEAD.iterdir()):
        (folder / path.name).symlink_to(path)
    source = ModelSource(str(folder), "safetensors")
    request = RunRequest(source, cpu=True, calibration=False, mtp=True, max_seq_len=512)
    model = ModelLoader(replace(request, max_seqs=16, max_batch_size=16)).load()
    yield model
    model.close()


@pytest.fixture
def engine(demo: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Engine:
    let_steps_take_as_planned(monkeypatch)
    engine = demo.engine._engine
    assert isinstance(engine.scheduler.drafter, DraftHead)
    engine.scheduler.drafter.pace = DraftPace(CHEAP)
    return engine


def requests(model: LoadedModel, count: int, sampling: Sampling) -> list[SequenceRequest]:
    """Questions that training may have asked, and other ones."""
    chance, made = Random(7), []
    while len(made) < count:
        text = dialogue(chance).messages()[0]["content"]
        prompt = model.prompts.chat([{"role": "user", "content": text}], sampling)
        made.append(SequenceRequest(prompt.ids, sampling, model._text.stop_ids))
    return made


def replies(
    engine: Engine, asked: list[SequenceRequest], batch: int, *, goes_on: bool = True
) -> list[list[int]]:
    """The tokens of all replies, `batch` at the same time."""
    waiting, running, ended = [*reversed(asked)], list[Sequence](), list[Sequence]()
    while waiting or running:
        while waiting and len(running) < batch:
            running.append(engine.add(waiting.pop()))
            ended.append(running[-1])
        engine.step(lambda: goes_on)
        running = [each for each in running if not each.is_finished]
    return [each.token_ids[each.num_prompt_tokens :] for each in ended]


def without_head(engine: Engine, asked: list[SequenceRequest]) -> list[list[int]]:
    worker, drafter = engine._worker, engine.scheduler.drafter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.scheduler, "drafter", None)
        patch.setattr(worker, "_taker", None)
        plain = replies(engine, asked, 1)
    assert engine.scheduler.drafter is drafter
    return plain


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, seed=3)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_replies_are_those_without_the_head(
    demo: LoadedModel, engine: Engine, batch: int, sampling: Sampling, count: int
) -> None:
    asked = requests(demo, count, replace(sampling, max_tokens=120))
    plain, before = without_head(engine, asked), engine.stats
    assert replies(engine, asked, batch) == plain
    stats = engine.stats
    first = stats.accepted_by_position[0] - before.accepted_by_position[0]
    drafts = stats.drafts - before.drafts
    if batch < 16:  # drafts of so many have no rows, until few are left
        assert first > 0.6 * drafts > 0
    drafter = engine.scheduler.drafter
    assert isinstance(drafter, DraftHead)
    assert not drafter._drafts
    assert drafter.caches.space.pools[0].used == 0


@pytest.mark.skipif(not is_available(), reason="torch computes one step at a time")
@pytest.mark.parametrize("batch", [1, 4])
def test_drafts_go_on_in_bursts(
    demo: LoadedModel, engine: Engine, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts of a burst are those that general steps make, as their counts say."""
    asked = requests(demo, 8, replace(GREEDY, max_tokens=120))
    plain, counts, verified = without_head(engine, asked), [], []
    verify = DraftBurst.verify

    def noted(self: DraftBurst) -> None:
        verified.append(len(self._heads))
        verify(self)

    monkeypatch.setattr(DraftBurst, "verify", noted)
    for goes_on in (False, True):
        engine.scheduler.drafter.pace = DraftPace(CHEAP)
        before = engine.stats
        assert replies(engine, asked, batch, goes_on=goes_on) == plain
        counts.append(engine.stats.accepted_tokens - before.accepted_tokens)
        assert bool(verified) is goes_on
    assert max(verified) == batch
    if batch == 1:  # others are alone at other times
        assert 0.9 < counts[1] / counts[0] < 1.1


@pytest.mark.skipif(not is_available(), reason="torch computes one step at a time")
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_burst_of_drafts_that_fails_leaves_no_trace(
    demo: LoadedModel, engine: Engine, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error ends the reply after the tokens before it; after an interrupt it goes on."""
    [request] = requests(demo, 1, replace(GREEDY, max_tokens=120))
    [plain] = without_head(engine, [request])
    at, left = NativeSteps.at, [3]

    def failing(self: NativeSteps, *arguments: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise error
        at(self, *arguments)

    monkeypatch.setattr(NativeSteps, "at", failing)
    sequence = engine.add(request)
    interrupts = 0
    while not sequence.is_finished:
        try:
            engine.step(lambda: True)
        except KeyboardInterrupt:
            interrupts += 1
    reply = sequence.token_ids[sequence.num_prompt_tokens :]
    if isinstance(error, KeyboardInterrupt):
        assert interrupts == 1
        assert reply == plain
    else:
        assert sequence.error is error
        assert 1 < len(reply) < len(plain)
        assert reply == plain[: len(reply)]
    assert engine.scheduler.drafter.caches.space.pools[0].used == 0
    assert not engine.scheduler.drafter._drafts
