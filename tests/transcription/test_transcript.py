"""Segments of replies, where the next window begins, and replies that are tried again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from mrs.architecture.vision_spec import LogMel
from mrs.families.vision.whisper import WindowLayout
from mrs.media.recording import Recording
from mrs.run.transcription.speech_tokens import SpeechTokens
from mrs.run.transcription.transcript import Transcript, TranscriptSettings, Window

END, FIRST = 256, 300
#: A token of language 260 and one of its task come before the text.
TOKENS = SpeechTokens(
    start=257,
    end=END,
    previous=258,
    no_speech=259,
    first_time=FIRST,
    languages={"en": 260, "de": 261},
    tasks={"transcribe": 262, "translate": 263},
    suppressed=(),
    suppressed_first=(),
)
LAYOUT = WindowLayout(LogMel(4), chunk=3000, halvings=1, least=480_000, token="")


class Letters:
    """A tokenizer of bytes."""

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode()

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        assert not allow_special
        return [*text.encode()]


def transcript(seconds: float, **settings: Any) -> Transcript:
    frames = round(100 * seconds)
    recording = Recording(torch.zeros(4, frames + 3000), frames, LAYOUT, b"x")
    letters: Any = Letters()
    return Transcript(recording, TOKENS, letters, 448, TranscriptSettings(**settings))


def said(*parts: str | float) -> list[int]:
    """Texts, and times in seconds."""
    ids: list[int] = []
    for part in parts:
        ids += part.encode() if isinstance(part, str) else [FIRST + round(part / 0.02)]
    return ids


def reply(window: Window, *parts: str | float, logprob: float = -0.2, silent: float = 0.0) -> None:
    window.reply.ids, window.reply.no_speech = said(*parts), silent
    window.reply._sum = logprob * (len(window.reply.ids) + 1)
    window.reply.language = window.reply.language or 260


def heard(
    made: Transcript, *replies: Sequence[str | float], **facts: float
) -> list[tuple[float, float, str]]:
    """The segments, of a reply to each window."""
    waiting = list(replies)
    for window in made.windows():
        reply(window, *waiting.pop(0), **facts)
    assert not waiting
    return [(round(s.start_s, 2), round(s.end_s, 2), s.text) for s in made.segments]


def test_a_cut_off_text_is_heard_again_from_its_beginning() -> None:
    made = transcript(40)
    first = (0.0, " One.", 4.5, 4.5, " Two.", 26.0, 26.0, " Thr")
    second = (0.0, " Three.", 5.0, 5.0, " Four.", 14.0)
    assert heard(made, first, second) == [
        (0.0, 4.5, " One."),
        (4.5, 26.0, " Two."),
        (26.0, 31.0, " Three."),
        (31.0, 40.0, " Four."),
    ]
    assert made.text == "One. Two. Three. Four."


def test_a_window_that_ends_whole_is_followed_by_the_next() -> None:
    made = transcript(35)
    both = heard(made, (0.0, " One.", 4.0, 4.0, " Two.", 10.0), (0.4, " Three.", 4.0))
    assert both[1:] == [(4.0, 10.0, " Two."), (30.4, 34.0, " Three.")]


def test_a_text_without_an_end_lasts_to_that_of_its_window() -> None:
    assert heard(transcript(9), (1.0, " One.")) == [(1.0, 9.0, " One.")]
    assert heard(transcript(9), (0.0, " One.", 29.0)) == [(0.0, 9.0, " One.")]
    assert heard(transcript(9), (0.0,)) == []
    assert heard(transcript(9), ()) == []


def test_every_reply_moves_on() -> None:
    """Also one that says that nothing was heard before its last time."""
    made = transcript(65)
    stuck = (0.0, " ", 0.0, 0.0, " x")
    assert len(heard(made, stuck, stuck, stuck)) == 0


def test_the_next_window_knows_what_was_said() -> None:
    made = transcript(61, text="Ada")
    prompts = []
    for window in made.windows():
        prompts.append(list(window.prompt.ids))
        reply(window, 0.0, " One.", 30.0)
    before = [258, *said(" Ada")]
    assert prompts[0] == [*before, 257]
    assert prompts[1] == [*before, *said(0.0, " One.", 30.0), 257]
    assert prompts[2] == [*before, *said(0.0, " One.", 30.0, 0.0, " One.", 30.0), 257]
    assert [each.positions for each in window.prompt.images] == [[0]]
    assert made.language == "en"


def test_caches_tell_windows_apart() -> None:
    """Those of one recording, and the first ones of two."""
    one = transcript(61).recording
    other = Recording(one.spectrogram, one.frames, one.layout, b"y")
    assert len({each.digest for each in (one.window(0), one.window(3000), other.window(0))}) == 3
    assert one.window(0).digest == one.window(0).digest


def test_what_was_said_has_half_the_context() -> None:
    made = transcript(91, tries_again=False)
    for window in made.windows():
        assert len(window.prompt.ids) + window.sampling.max_tokens <= 448
        reply(window, 0.0, " word" * 40, 30.0)
    assert len(window.prompt.ids) == 1 + 223 + 1


def test_a_reply_that_repeats_itself_is_tried_again() -> None:
    made, temperatures = transcript(20), []
    for window in made.windows():
        temperatures.append(window.sampling.temperature)
        wrong = window.sampling.temperature < 0.5
        reply(window, 0.0, " la" * 60 if wrong else " Song.", 20.0)
    assert temperatures == [0.0, 0.2, 0.4, 0.6]
    assert made.text == "Song."


@pytest.mark.parametrize("settings", [{"tries_again": False}, {"temperature": 0.3}], ids=str)
def test_what_streams_or_has_a_temperature_is_tried_once(settings: dict[str, Any]) -> None:
    made, tries = transcript(20, **settings), 0
    for window in made.windows():
        tries += 1
        reply(window, 0.0, " x", 20.0, logprob=-3.0)
    assert tries == 1


def test_the_last_attempt_counts_and_is_no_example() -> None:
    made, tries = transcript(31), 0
    for window in made.windows():
        tries += 1
        if tries == 7:
            assert window.prompt.ids == [257]
        reply(window, 0.0, " x", 30.0, logprob=-3.0 if tries <= 6 else -0.1)
    assert (tries, made.text) == (7, "x x")


def test_silence_has_no_text() -> None:
    assert heard(transcript(9), (0.0, " Thanks.", 3.0), logprob=-1.5, silent=0.9) == []
    sure = heard(transcript(9), (0.0, " Thanks.", 3.0), logprob=-0.5, silent=0.9)
    assert len(sure) == 1


def test_what_is_certain_of_a_reply_grows_to_the_text() -> None:
    made, parts = transcript(40, tries_again=False), []
    whole = said(0.0, " One.", 4.5, 4.5, " Two.", 26.0, 26.0, " Thr")
    for window in made.windows():
        ids = whole if window.start_frame == 0 else said(0.0, " Three.", 14.0)
        for count in range(len(ids) + 1):
            window.reply.ids = ids[:count]
            parts.append(made.text_with(window))
        reply(window)
        window.reply.ids = ids
    parts.append(made.text)
    for before, after in pairwise(parts):
        assert after.startswith(before)
    assert [*dict.fromkeys(parts)] == ["", "One.", "One. Two.", "One. Two. Three."]
