"""The one face: plan a model, load it, stream its replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mrs.events import Event, Finished, FinishReason, LoadProgress, OnProgress, TextDelta, Usage
from mrs.families.find import Description, describe
from mrs.kernels.library import is_available
from mrs.plan.memory import probe_devices
from mrs.plan.plan import Plan, make_plan
from mrs.request import Message, RunRequest, Sampling
from mrs.source.find import fetch, open_checkpoint

if TYPE_CHECKING:
    from mrs.run.engine import Engine
    from mrs.source.checkpoint import Checkpoint
    from mrs.text.chat import TextSide

_logger = logging.getLogger(__name__)


def plan(request: RunRequest) -> Plan:
    """What `load` would do, from the headers alone."""
    checkpoint = open_checkpoint(request.source)
    return _plan(request, checkpoint, describe(checkpoint, request.arch))


def load(request: RunRequest, on_progress: OnProgress | None = None) -> LoadedModel:
    """Plan, download what is missing, and load. Raises MrsError."""
    report = on_progress or (lambda progress: None)
    checkpoint = open_checkpoint(request.source)
    description = describe(checkpoint, request.arch)
    made = _plan(request, checkpoint, description)
    made.require_fit()
    for remark in (*checkpoint.notes, *made.warnings):
        _logger.warning(remark)
    checkpoint = fetch(checkpoint, lambda done, total: report(LoadProgress("disk", done, total)))
    # Heavy imports start here: whatever fails above fails fast.
    from mrs.text.chat import read_text_side

    text = read_text_side(
        checkpoint, chat_template=request.chat_template, jinja_explicit=request.jinja_explicit
    )
    engine = _load_engine(request, checkpoint, description, made, report)
    return LoadedModel(request, made, text, engine)


def _plan(request: RunRequest, checkpoint: Checkpoint, description: Description) -> Plan:
    devices = probe_devices(what_if=request.devices, cpu_only=request.cpu)
    return make_plan(request, checkpoint, description, devices, cpu_packs=is_available())


def _load_engine(
    request: RunRequest,
    checkpoint: Checkpoint,
    description: Description,
    made: Plan,
    report: OnProgress,
) -> Engine:
    import torch

    from mrs.load.load import load_weights
    from mrs.load.read import TORCH_DTYPES
    from mrs.model.decoder import Decoder
    from mrs.run.engine import Engine

    torch_devices = [torch.device(device.torch_device) for device in made.devices]
    totals = made.weight_bytes()
    done = dict.fromkeys(totals, 0)

    def on_bytes(name: str, size_bytes: int) -> None:
        index = made.parameter_devices[name]
        done[index] += size_bytes
        report(LoadProgress(made.devices[index].label, done[index], totals[index]))

    weights = load_weights(
        checkpoint,
        description.parameters,
        made.storage,
        {name: torch_devices[index] for name, index in made.parameter_devices.items()},
        on_bytes,
    )
    decoder = Decoder(
        description.spec,
        weights,
        [torch_devices[index] for index in made.layer_devices],
        TORCH_DTYPES[made.dense.name],
    )
    return Engine(
        decoder,
        planned_tokens=request.max_seq_len,
        context_tokens=description.spec.context_tokens,
        kv_cache=request.kv_cache,
        seed=request.seed,
    )


class LoadedModel:
    """A model that answers. Not safe for use by two threads at once."""

    def __init__(self, request: RunRequest, plan: Plan, text: TextSide, engine: Engine) -> None:
        self.plan = plan
        self.summary = plan.summary
        self.has_chat_template = text.template is not None
        self.context_tokens = engine.context_tokens
        self._thinking = request.thinking
        self._text = text
        self._engine = engine

    def stream_chat(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Event]:
        """Answer the last message of a conversation."""
        prompt_ids = self._text.prompt_ids(messages, thinking=self._thinking)
        return self._stream(prompt_ids, sampling)

    def stream_completion(self, prompt: str, sampling: Sampling) -> Iterator[Event]:
        """Continue a text."""
        return self._stream(self._text.encode_raw(prompt), sampling)

    def close(self) -> None:
        """Give the memory back."""
        del self._engine

    def _stream(self, prompt_ids: list[int], sampling: Sampling) -> Iterator[Event]:
        decoder = self._text.stream_decoder(sampling.stop)
        clock = _Clock(len(prompt_ids))
        reason: FinishReason = "length"
        try:
            for token in self._engine.generate(prompt_ids, sampling):
                clock.tick()
                if token in self._text.stop_ids:
                    reason = "stop"
                    break
                if text := decoder.push(token):
                    yield TextDelta(text)
                if decoder.stopped:
                    reason = "stop"
                    break
        except KeyboardInterrupt:
            reason = "cancelled"
        if rest := decoder.finish():
            yield TextDelta(rest)
        yield Finished(reason, clock.usage())


class _Clock:
    """Counts and times the tokens of one reply."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._start = self._first = self._last = time.perf_counter()

    def tick(self) -> None:
        self._last = time.perf_counter()
        if self._tokens == 0:
            self._first = self._last
        self._tokens += 1

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._tokens,
            cached_tokens=0,
            prompt_s=self._first - self._start,
            completion_s=self._last - self._first,
        )
