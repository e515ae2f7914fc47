"""A loaded model: answers conversations and prompts until it is closed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mrs.devices.bandwidth import (
    bandwidth_of,
    has_room_to_measure,
    is_host_known,
    learn_host_bandwidth,
    remember_bandwidth,
)
from mrs.devices.processor import is_busy
from mrs.errors import UsageError
from mrs.events import DeviceMemoryUsage
from mrs.plan.plan import Plan
from mrs.plan.speed.learnt import Pace, learn
from mrs.request import Message, RunRequest, Sampling
from mrs.text.shorten import newest_tokens, newest_turns, room_for_prompt

if TYPE_CHECKING:
    from mrs.engine.loop import EngineLoop
    from mrs.engine.reply import Reply
    from mrs.media.gallery import Gallery
    from mrs.media.prepare import PreparedImage
    from mrs.text.chat import TextSide
    from mrs.text.tokenizer import Tokenizer


class LoadedModel:
    """A model that answers, several threads too.

    A stream's reply is begun at once, and computed together with all others in a thread of the
    model's own. KeyboardInterrupt while waiting ends it with `Finished("cancelled", …)`.
    """

    def __init__(
        self,
        request: RunRequest,
        plan: Plan,
        text: TextSide,
        engine: EngineLoop,
        gallery: Gallery | None = None,
    ) -> None:
        self.plan = plan
        self.summary = plan.summary
        self.has_chat_template = text.template is not None
        self.context_tokens = engine.context_tokens
        self._thinking = request.thinking
        self._text = text
        self._gallery = gallery
        self._engine: EngineLoop | None = engine
        self.pace = Pace()

    @property
    def engine(self) -> EngineLoop:
        """What makes tokens. Raises UsageError after `close`."""
        if self._engine is None:
            raise UsageError(
                "the model is closed", where=self.plan.model.model_id, hint="load it again"
            )
        return self._engine

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    @property
    def tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        thinking: bool | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Answer the last message of a conversation; `thinking` goes before the model's own.

        With `truncate`, a conversation that is too long loses its oldest turns, and if the newest
        is still too long, the prompt its oldest tokens. A reply that is not complete after
        `timeout_s` fails.
        """
        thinking = self._thinking if thinking is None else thinking
        prompt_ids, images = self._read(messages, thinking)
        if truncate and len(prompt_ids) >= self.context_tokens:
            room = room_for_prompt(self.context_tokens, sampling.max_tokens)
            messages = newest_turns(
                messages, lambda rest: len(self._read(rest, thinking)[0]) <= room
            )
            prompt_ids, images = self._read(messages, thinking)
        if not images:  # which cannot be cut
            prompt_ids = self._cut(prompt_ids, sampling, truncate)
        opening = self._text.opening(prompt_ids)
        return self._stream(prompt_ids, sampling, opening, images, timeout_s)

    def stream_completion(
        self,
        prompt: str,
        sampling: Sampling,
        *,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Continue a text; with `truncate`, one that is too long loses its oldest tokens.

        A reply that is not complete after `timeout_s` fails.
        """
        prompt_ids = self._cut(self._text.encode_raw(prompt), sampling, truncate)
        return self._stream(prompt_ids, sampling, timeout_s=timeout_s)

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens that a conversation takes of the context."""
        return len(self._read(messages, self._thinking)[0])

    def memory(self) -> list[DeviceMemoryUsage]:
        """What this process holds on the plan's devices now, and what is free there."""
        from mrs.engine.profile.memory_in_use import device_memory_usage

        used = zip(self.plan.devices, self.plan.terms, strict=True)
        return device_memory_usage(device.torch_device for device, terms in used if terms.is_used)

    def close(self) -> None:
        """Give the memory back, once what is to be kept of it is in files. Twice is harmless."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            learn_speed(self.plan, self.pace)

    def _cut(self, prompt_ids: list[int], sampling: Sampling, truncate: bool) -> list[int]:
        if not truncate or len(prompt_ids) < self.context_tokens:
            return prompt_ids
        room = room_for_prompt(self.context_tokens, sampling.max_tokens)
        return newest_tokens(prompt_ids, room, self.tokenizer.bos_id)

    def _read(
        self, messages: Sequence[Message], thinking: bool | None
    ) -> tuple[list[int], list[PreparedImage]]:
        """The prompt of a conversation, and the pictures in it. Raises UsageError after `close`."""
        _ = self.engine
        images: list[PreparedImage] = []
        if self._gallery is not None:
            images = self._gallery.of(messages)
        elif any(message.get("images") for message in messages):
            raise UsageError(
                "the model was loaded without its eyes",
                where=self.plan.model.model_id,
                hint="if it has any, load it with vision-plain",
            )
        texts = [image.shape.text for image in images]
        return self._text.prompt_ids(messages, thinking=thinking, image_texts=texts), images

    def _stream(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        opening: str = "",
        images: Sequence[PreparedImage] = (),
        timeout_s: float | None = None,
    ) -> Reply:
        from mrs.engine.image_input import place_images
        from mrs.engine.reply import Reply

        vision = self.engine.vision
        placed = place_images(vision, prompt_ids, images) if vision is not None else []
        return Reply(
            self.engine,
            self._text,
            prompt_ids,
            sampling,
            opening,
            placed,
            self.plan.speed,
            self.pace,
            timeout_s,
        )


def learn_speed(made: Plan, pace: Pace) -> None:
    """Keep what a run has shown of this machine; whoever is in a hurry does not wait for it."""
    index = made.speed.only_device
    if pace.step_s is None or index is None or made.devices[index].bandwidth_source == "given":
        return
    device = made.devices[index]
    with suppress(KeyboardInterrupt):
        if device.torch_device == "cpu" and not is_busy():
            if not is_host_known() and has_room_to_measure():
                learn_host_bandwidth()
            learn(made.speed, pace)
        shown = made.speed.shown_bandwidth(index, 1 / pace.step_s)
        if shown > bandwidth_of(device):
            remember_bandwidth(device, shown)
