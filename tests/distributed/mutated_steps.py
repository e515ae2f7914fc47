"""Steps of a head with one field changed, for workers of tiny models.

A program: `python mutated_steps.py KINDS SEED COUNT`, where KINDS is JSON with the folder of a
model for each name. A child process of its own takes the steps of each kind; after one that a
signal has ended, the next one goes on. The last line is a JSON report.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import torch
from clusters import engine_of, request_for
from torch import Tensor

from mrs.distributed.cluster import Shard, assignments
from mrs.distributed.pipeline import (
    Connections,
    Neighbours,
    PipelineDecoder,
    RemoteLayers,
    RemoteRank,
)
from mrs.distributed.protocol.channel import Channel, Damaged
from mrs.distributed.protocol.failures import words_for
from mrs.distributed.protocol.messages import Assignment, CacheCommand, Message, Step, StepImage
from mrs.distributed.shard import load_parameters, one_device_plan, rank_plans, shard_parameters
from mrs.distributed.stage import LoadedShard, Stage, load_assigned
from mrs.distributed.tensor_parallel import LeadingShardedDecoder
from mrs.distributed.worker import WorkerSteps
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.quantization.kv_type import kv_type
from mrs.run.model_loader import ModelLoader
from support.engines import Asked
from support.tiny_decoders import GREEDY

#: The hidden size of the models that get images.
_IMAGE_WIDTH = 64
#: A step of a tiny model takes milliseconds; a machine that others use may stop for a while.
_LIMIT_S = 120


class Sent(NamedTuple):
    """A step, and the frame of hidden states that comes with it."""

    step: Step
    hidden: tuple[Message, bytes] | None


class _Alone:
    """The group of a rank whose other ranks add nothing."""

    device = torch.device("cpu")

    def all_reduce(self, part: Tensor) -> Tensor:
        return part.float()

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        return torch.cat([part.new_zeros(len(part), width) for width in widths], 1)

    def broadcast(self, x: Tensor) -> Tensor:
        return x if x.numel() == 0 else torch.zeros_like(x)

    def close(self) -> None:
        pass


class _Wire:
    """A channel in this process: what is sent is kept."""

    most_data_bytes = 0

    def __init__(self) -> None:
        self.kept: list[tuple[Message, bytes]] = []

    def send(self, message: Message, data: memoryview | None = None) -> None:
        self.kept.append((message, b"" if data is None else bytes(data)))

    def damaged(self, what: str) -> Damaged:
        return Damaged(what)

    def receive(self) -> tuple[Message, bytearray]:
        message, data = self.kept.pop(0)
        return message, bytearray(data)


class Worker:
    """One rank of a model that has loaded its part, with new caches each time it starts again."""

    def __init__(self, folder: Path, *, is_share: bool) -> None:
        self.loader = ModelLoader(request_for(folder, None, 0))
        self.request, self.planner = self.loader.request, self.loader.planner
        self.plan = one_device_plan(self.planner, self.request)
        self.is_share = is_share
        self._group, count = _Alone(), len(self.planner.description.spec.layers)
        self.plans = rank_plans(self.planner, self.plan, self.request, 2) if is_share else []
        self.own_layers = range(count if is_share else 1)
        self.assignment = self._assignment(range(0 if is_share else 1, count))
        self.part = load_assigned(
            self.assignment, None, lambda request: ModelLoader(request).planner
        )
        self.part.group.current = self._group if is_share else None  # type: ignore[assignment]
        self.left, self.right = _Wire(), _Wire()
        self.steps = self.fresh()

    def _assignment(self, layers: range) -> Assignment:
        planner = self.plans[1].planner if self.is_share else self.planner
        parameters = shard_parameters(planner.description, layers, is_coordinator=self.is_share)
        parts = [Shard(layers, parameters)]
        size = 2 if self.is_share else 1
        return assignments(self.request, self.planner, self.plan, parts, group_size=size)[0]

    def fresh(self) -> WorkerSteps:
        """The same weights without a cache."""
        old = self.part.stage
        stage = Stage(
            old._stack,
            self.planner.description.spec,
            old._config,
            most_tokens=self.part.most_tokens,
            cache_bytes=1 << 30,
            is_first=self.is_share,
        )
        part = LoadedShard(stage, *self.part[1:])
        wires = (None, None) if self.is_share else (self.left, self.right)
        self.steps = WorkerSteps(part, self.assignment, *cast(Any, wires))
        return self.steps

    def take(self, sent: Sent) -> None:
        self.left.kept[:] = [] if sent.hidden is None else [sent.hidden]
        self.right.kept.clear()
        self.steps.compute(sent.step)


def record(worker: Worker) -> list[Sent]:
    """What a head sends to the worker, for some prompts, the second like the first."""
    found: list[Sent] = []
    right = _Wire()

    def send(message: Message) -> None:
        if isinstance(message, Step):
            found.append(Sent(message, None))
            if worker.is_share:
                worker.take(found[-1])

    class Back(_Wire):
        def receive(self) -> tuple[Message, bytearray]:
            return worker.right.receive()

    def send_right(message: Message, data: memoryview | None = None) -> None:
        found[-1] = Sent(found[-1].step, (message, b"" if data is None else bytes(data)))
        worker.take(found[-1])

    right.send = send_right  # type: ignore[method-assign]
    link = SimpleNamespace(doing="", send=send)
    stage = worker.part.stage
    layers = range(worker.assignment.first, worker.assignment.end)
    rank = RemoteRank(cast(Any, link), layers, stage.cache_infos)
    rendezvous = SimpleNamespace(renewed=lambda: None, reason=lambda error: error)
    if worker.is_share:
        rank.is_shard = True
        weights = load_parameters(
            worker.plans[0].planner,
            worker.plans[0].plan,
            list(worker.plans[0].planner.description.parameters),
            {},
        )
        connected = Connections(cast(Any, _Alone()), [rank], None, [0.0])
        decoder: Any = LeadingShardedDecoder(
            weights, worker.plans, connected, cast(Any, rendezvous), len(worker.own_layers)
        )
    else:
        parameters = shard_parameters(
            worker.planner.description, worker.own_layers, is_coordinator=True
        )
        weights = load_parameters(worker.planner, worker.plan, parameters, {})
        neighbours = Neighbours([rank], cast(Channel, right), cast(Channel, Back()), ())
        dtypes = TORCH_DTYPES[worker.plan.dense.name], kv_type(worker.plan.cache_format.name)
        decoder = PipelineDecoder(
            worker.planner.description.spec,
            weights,
            [torch.device("cpu")] * len(worker.own_layers),
            dtypes,
            RemoteLayers(neighbours),
            cast(Any, rendezvous),
        )
    engine = engine_of(decoder, planned_tokens=48, block_tokens=8)
    settings = replace(GREEDY, max_tokens=3, ignore_eos=True)
    prompts = [[(7 * n + 3 * k) % 90 + 1 for n in range(9 + 11 * k)] for k in range(2)]
    asked = [Asked.of(engine, prompt, settings) for prompt in prompts]
    replies = [each.finish() for each in asked]
    Asked.of(engine, prompts[1] + replies[1] + [5, 6], settings).finish()
    return found


def with_ends(sent: Sent) -> Sent:
    """All tokens of a step attend to the last one of their sequence, as those of an image."""
    ends = [each.start + each.count - 1 for each in sent.step.sequences for _ in range(each.count)]
    given = msgspec.structs.replace(sent.step, attention_ends=np.array(ends, np.int64).tobytes())
    return Sent(given, sent.hidden)


def with_axes(sent: Sent) -> Sent:
    """Positions in time, height and width."""
    given = msgspec.structs.replace(sent.step, positions=3 * sent.step.positions)
    return Sent(given, sent.hidden)


def with_images(sent: Sent) -> Sent:
    """The tokens of the first and of the last sequence are images, whose features rank 0 has."""
    counts = [each.count for each in sent.step.sequences]
    spans = [range(counts[0]), range(sum(counts[:-1]), sum(counts))][: len(counts)]
    images = [StepImage(np.array(span, np.int64).tobytes(), _IMAGE_WIDTH) for span in spans]
    return Sent(msgspec.structs.replace(sent.step, images=images), sent.hidden)


_INTS = (-1, 0, 1, 2, 7, 63, 64, 1000, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, -(1 << 40))
_Chance = random.Random


def _int(chance: _Chance, old: int) -> int:
    near = (old + 1, old - 1, old + 8, old * 2, -old, old + 64)
    return chance.choice((*near, *_INTS))


def _bytes(chance: _Chance, old: bytes, dtype: str) -> bytes:
    """One value changed, or of another length."""
    values = np.frombuffer(old[: len(old) // int(dtype[1]) * int(dtype[1])], dtype).copy()
    kind = chance.randrange(8)
    if kind == 0:
        return old[: chance.randrange(len(old) + 1)]
    if kind == 1:
        return old + old
    if kind == 2:
        return old + bytes(chance.randrange(1, 12))
    if kind == 3:
        return b""
    if kind == 4:
        return values.astype("i4" if dtype == "i8" else "i8").tobytes()
    if not len(values):
        return bytes(8)
    if kind == 5:
        return values[::-1].tobytes() if dtype == "i8" else (values + 1).tobytes()
    info = np.iinfo(dtype)
    wanted = _int(chance, int(values[0]))
    where = chance.randrange(len(values)) if kind == 6 else slice(None)
    values[where] = min(max(wanted, info.min), info.max)
    return values.tobytes()


def _list(chance: _Chance, old: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """One entry changed, missing, or twice; or all of them."""
    values, kind = list(old), chance.randrange(5)
    if not values:
        return values
    at = chance.randrange(len(values))
    if kind == 0:
        values.pop(at)
    elif kind == 1:
        values.append(values[at])
    elif kind == 2:
        values = []
    else:
        values[at] = change(values[at])
    return values


def _changed(chance: _Chance, message: Any, name: str) -> Any:
    """A message with another value of the field `name`."""
    old = getattr(message, name)

    def nested(value: Any) -> Any:
        if isinstance(value, bytes):
            return _bytes(chance, value, "i4")
        if isinstance(value, int):
            return _int(chance, value)
        return _changed(chance, value, chance.choice(value.__struct_fields__))

    if isinstance(old, int):
        new: Any = _int(chance, old)
    elif isinstance(old, bytes):
        new = _bytes(chance, old, "i8")
    elif old is None:
        count = len(message.positions) // 8
        ends = np.full(count, _int(chance, 3) % (1 << 62), np.int64)
        new = _bytes(chance, ends.tobytes(), "i8") if chance.randrange(2) else ends.tobytes()
    else:
        if name == "wanted" and not old:
            old = [_int(chance, 0)]
        if name == "groups" and chance.randrange(3) == 0:
            old = [_int(chance, each) for each in old]
        new = _list(chance, old, nested)
    return msgspec.structs.replace(message, **{name: new})


def mutated(chance: _Chance, step: Step, ids: Sequence[int]) -> tuple[str, Step]:
    """A step with one to two faults, and which."""
    names, given = [], step
    for _ in range(1 + (chance.randrange(6) == 0)):
        kind = chance.randrange(6)
        if kind == 0:  # a command of its own
            of = chance.choice(CacheCommand.__args__)
            values: dict[str, Any] = {
                name: [_int(chance, 0) for _ in range(chance.randrange(4))]
                if name == "groups"
                else chance.choice((*_INTS, *range(6), *ids))
                for name in of.__struct_fields__
            }
            if "blocks" in values:  # what a head may ask for, which a test has no time for
                values["blocks"] = chance.choice((-1, 0, 1, 2, 7, 1 << 40, 1 << 62))
            given = msgspec.structs.replace(given, commands=[*given.commands, of(**values)])
            names.append(of.__name__)
            continue
        if kind in (1, 2) and given.sequences:
            name = chance.choice(given.sequences[0].__struct_fields__)
            at = chance.randrange(len(given.sequences))
            sequences = list(given.sequences)
            sequences[at] = _changed(chance, sequences[at], name)
            given = msgspec.structs.replace(given, sequences=sequences)
        else:
            names_of_all = [each for each in Step.__struct_fields__ if each != "number"]
            name = chance.choice(names_of_all)
            given = _changed(chance, given, name)
        names.append(name)
    decoder = msgspec.msgpack.Decoder(Step)
    return " and ".join(names), decoder.decode(msgspec.msgpack.encode(given))


def trial(name: str, worker: Worker, sent: Sequence[Sent], seed: int) -> tuple[str, str]:
    """One changed step, after those before it: which field, and what the worker said."""
    chance = random.Random(seed)
    at = chance.randrange(len(sent))
    worker.fresh()
    for each in sent[:at]:
        worker.take(each)
    ids = [n for each in sent[: at + 1] for one in each.step.sequences for n in one.states]
    hidden = sent[at].hidden
    if hidden is not None and chance.randrange(12) == 0:
        return "hidden states", _outcome(
            worker, Sent(sent[at].step, _changed_hidden(chance, *hidden))
        )
    try:
        field, step = mutated(chance, sent[at].step, ids)
    except (msgspec.MsgspecError, OverflowError):
        return "a message", "Damaged: it cannot be read"
    return field, _outcome(worker, Sent(step, hidden))


def _outcome(worker: Worker, sent: Sent) -> str:
    try:
        worker.take(sent)
    except Damaged as error:
        return f"Damaged: {error}"
    except Exception as error:  # noqa: BLE001 - a worker reports it, and ends
        return f"other: {words_for(error)}"
    return "computed"


def _changed_hidden(chance: _Chance, message: Message, data: bytes) -> tuple[Message, bytes]:
    """Other values, of which some are no numbers; other lengths; another step or count of rows."""
    kind = chance.randrange(8)
    if kind == 0:
        return message, data[: chance.randrange(len(data))]
    if kind == 1:
        return message, data + bytes(4)
    if kind == 2:
        return _changed(chance, message, chance.choice(("number", "rows"))), data
    values = np.frombuffer(data, np.float32).copy()
    bad = chance.choice((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45))
    values[chance.randrange(len(values)) if kind < 5 else slice(None)] = bad
    return message, values.tobytes()


def prepared(name: str, folder: Path) -> tuple[Worker, list[Sent]]:
    torch.manual_seed(0)
    worker = Worker(folder, is_share=name.startswith("share"))
    sent = record(worker)
    if "ends" in name:
        sent = [with_ends(each) for each in sent]
    if "images" in name:
        sent = [with_images(each) for each in sent]
    if "axes" in name:
        sent = [with_axes(each) for each in sent]
    worker.fresh()
    for each in sent:  # as they are, they are right
        worker.take(each)
    return worker, sent


def run(name: str, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """What became of all changed steps of a kind; a signal costs the child, not the report."""
    worker, sent = prepared(name, folder)
    said: Counter[str] = Counter()
    ends: list[str] = []
    others: list[str] = []
    rest = list(seeds)
    while rest:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            faulthandler.disable()
            with os.fdopen(writing, "w", 1) as out:
                for seed in rest:
                    signal.alarm(_LIMIT_S)
                    field, outcome = trial(name, worker, sent, seed)
                    out.write(f"{json.dumps([seed, field, outcome])}\n")
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            found = [json.loads(line) for line in lines]
        _, status = os.waitpid(child, 0)
        for _, field, outcome in found:
            said[outcome.split(":")[0]] += 1
            if outcome.startswith("other"):
                others.append(f"{field}: {outcome}")
        rest = rest[len(found) :]
        if status:
            ends.append(f"{name} {rest[0]} by signal {status & 127}")
            said["hangs" if status & 127 == signal.SIGALRM else "signals"] += 1
            rest = rest[1:]
    return {"kind": name, "steps": len(sent), **said, "ends": ends, "others": others}


def main(kinds: Mapping[str, str], seed: int, count: int) -> None:
    torch.set_num_threads(1)
    reports = []
    for number, (name, folder) in enumerate(kinds.items()):
        since_s = time.monotonic()
        first = seed + 100_000 * number
        report = run(name, Path(folder), range(first, first + count))
        report["seconds"] = round(time.monotonic() - since_s, 1)
        reports.append(report)
        print({k: v for k, v in report.items() if k != "others"}, file=sys.stderr, flush=True)
    print(json.dumps(reports))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
