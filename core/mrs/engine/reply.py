"""A reply as events, for a thread that waits for them."""

from __future__ import annotations

from dataclasses import replace

from mrs.engine.loop import EngineLoop
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents, sequence_request
from mrs.events import Event, Finished
from mrs.plan.speed.learnt import Pace
from mrs.plan.speed.roofline import SpeedEstimate
from mrs.request import Sampling
from mrs.text.text_processor import TextProcessor


class Reply:
    """The events of one reply: an iterator that ends with one `Finished`.

    Tokens are computed even if nobody reads them; they become text in the thread that reads. A
    KeyboardInterrupt while it waits ends it as cancelled; `close` stops it at once. `speed` is the
    planned speed, and `pace` collects the measured one.
    """

    def __init__(
        self,
        engine: EngineLoop,
        text: TextProcessor,
        prompt: Prompt,
        sampling: Sampling,
        speed: SpeedEstimate | None = None,
        pace: Pace | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._is_finished = False
        self._stream = engine.submit(sequence_request(text, prompt, sampling, timeout_s))
        sequence = self._stream.sequence
        self._events = ReplyEvents(sequence, text, prompt, sampling, speed, pace)

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> Event:
        """Waits for the next event. Raises MrsError."""
        if self._is_finished:
            raise StopIteration
        try:
            while not self._events.queue:
                self._events.take(next(self._stream))
        except KeyboardInterrupt:
            self._events.finish("cancelled")
        except BaseException:
            self.close()
            raise
        event = self._events.queue.popleft()
        if not isinstance(event, Finished):
            return event
        self._is_finished = True
        if event.reason == "cancelled":
            return event
        return replace(event, prompt_logprobs=self._events.prompt_logprobs())

    def close(self) -> None:
        """Stop the reply. Any thread may call this."""
        self._stream.close()
        self._is_finished = True

    def __del__(self) -> None:
        # The engine has no reference to this object: nobody reads the reply any more.
        if hasattr(self, "_stream"):
            self._stream.close()
