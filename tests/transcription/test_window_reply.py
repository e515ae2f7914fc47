"""The rules of a reply to a window, and what becomes of it: times, segments, the next window."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from mrs.errors import NotReadable, UsageError
from mrs.run.transcription.speech_tokens import SpeechTokens, read_speech_tokens
from mrs.run.transcription.transcript import TranscriptSettings, check_settings
from mrs.run.transcription.window_reply import WindowReply

NAMES = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>"),
    *("<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"),
)
TEXT, TIMES = 40, 101
IDS = {name: TEXT + number for number, name in enumerate(NAMES)}
END, START, FIRST = TEXT, TEXT + 1, TEXT + len(NAMES)
VOCAB = FIRST + TIMES
SUPPRESSED, AT_FIRST = [3, 5, START], [7, END]


class Tokens:
    def __init__(self) -> None:
        self.added_ids = IDS


def tokens(**settings: object) -> SpeechTokens:
    given = {"suppress_tokens": SUPPRESSED, "begin_suppress_tokens": AT_FIRST, **settings}
    return read_speech_tokens(Tokens(), [given, {}], VOCAB, "here")


def expected(ids: list[int], logits: np.ndarray) -> np.ndarray:
    """What transformers leaves of logits after some tokens of a reply."""
    config = GenerationConfig(eos_token_id=END, bos_token_id=END)
    config.no_timestamps_token_id, config.max_initial_timestamp_index = FIRST - 1, 50
    begin = [START, IDS["<|de|>"], IDS["<|transcribe|>"]]
    scores = torch.from_numpy(logits.copy())[None]
    given = torch.tensor([[*begin, *ids]])
    controls = [*range(START, FIRST)]  # never text
    for process in (
        SuppressTokensLogitsProcessor(sorted({*SUPPRESSED, *controls})),
        SuppressTokensAtBeginLogitsProcessor(AT_FIRST, len(begin)),
        WhisperTimeStampLogitsProcessor(config, begin_index=len(begin)),
    ):
        scores = process(given, scores)
    return scores[0].numpy()


def begun(language: int | None = None) -> WindowReply:
    """A reply whose language and task are chosen."""
    known = tokens()
    reply = WindowReply(known, language, known.tasks["transcribe"])
    logits = np.zeros(VOCAB, np.float32)
    logits[IDS["<|de|>"]] = 1.0
    reply(logits)
    reply.append(int(logits.argmax()))
    for forced in reply.forced_tokens():
        reply.append(forced)
    return reply


@pytest.mark.parametrize("seed", range(12))
def test_the_rules_are_those_of_transformers(seed: int) -> None:
    """Over whole replies, in which times are rather likely, rather unlikely, or in between."""
    rng = np.random.default_rng(seed)
    reply, total = begun(), 0.0
    for step in range(30):
        logits = rng.normal(size=VOCAB).astype(np.float32)
        logits[FIRST:] += (seed % 3 - 1) * 2
        wanted = expected(reply.ids, logits)
        reply(logits)
        assert (np.isfinite(logits) == np.isfinite(wanted)).all(), (step, reply.ids)
        assert logits[np.isfinite(logits)] == pytest.approx(wanted[np.isfinite(wanted)])
        token = int(logits.argmax())
        shares = torch.from_numpy(logits).double().log_softmax(0)
        total += float(shares[token])
        reply.append(token)
        if token == END:
            break
    assert reply.mean_logprob == pytest.approx(total / (len(reply.ids) + 1), rel=1e-4)


def test_the_likeliest_language_is_chosen_or_the_given_one() -> None:
    found = begun()
    assert tokens().language_of(found.language or 0) == "de"
    assert found.forced_tokens() == []
    assert begun(IDS["<|en|>"]).language == IDS["<|en|>"]
    assert found.ids == []


def test_no_speech_is_judged_before_a_word() -> None:
    known = tokens()
    reply, logits = WindowReply(known, None, None), np.zeros(VOCAB, np.float32)
    logits[known.no_speech] = math.log(VOCAB - 1)  # as likely as all others together
    reply(logits)
    assert reply.no_speech == pytest.approx(0.5)
    reply.append(int(logits.argmax()))
    reply(np.zeros(VOCAB, np.float32))
    assert reply.no_speech == pytest.approx(0.5)


def test_a_model_of_english_has_no_tokens_before_the_text() -> None:
    known = tokens(is_multilingual=False)
    assert (known.languages, known.tasks) == ({}, {})
    reply, logits = WindowReply(known, None, None), np.zeros(VOCAB, np.float32)
    reply(logits)
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [*range(FIRST, FIRST + 51)]
    for settings in (TranscriptSettings(task="translate"), TranscriptSettings(language="de")):
        with pytest.raises(UsageError, match=r"does not translate|is not known"):
            check_settings(settings, known)
    check_settings(TranscriptSettings(language="en"), known)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"suppress_tokens": 3}, "suppress_tokens is not a list"),
        ({"suppress_tokens": [VOCAB]}, "suppress_tokens is not a list"),
        ({"begin_suppress_tokens": ["a"]}, "begin_suppress_tokens is not a list"),
    ],
)
def test_wrong_settings_are_one_line(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(NotReadable, match=reason):
        tokens(**settings)


def test_a_vocabulary_without_the_tokens_is_refused() -> None:
    with pytest.raises(NotReadable, match="in another order"):
        read_speech_tokens(Tokens(), [{}], FIRST, "here")
    fewer = Tokens()
    for name in ("<|startofprev|>", "<|nocaptions|>"):
        fewer.added_ids = {each: i for each, i in IDS.items() if each != name}
        with pytest.raises(NotReadable, match="lacks the token"):
            read_speech_tokens(fewer, [{}], VOCAB, "here")
