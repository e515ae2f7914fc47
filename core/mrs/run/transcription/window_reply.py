"""What a reply to a window of sound may be: a language, a task, and text between times."""

from __future__ import annotations

import numpy as np

from mrs.engine.sampling.processors import FloatArray
from mrs.run.transcription.speech_tokens import SpeechTokens

#: What is said first begins within so many steps of time (a second).
MOST_FIRST_STEPS = 50


class WindowReply:
    """Keeps the reply to the rules, and what is known of it: a constraint of the engine.

    Of several languages the likeliest is chosen, or the given one. Times come in pairs, around each
    piece of text, and never go back. Where times together are likelier than any token of text, one
    of them follows. Facts: github.com/openai/whisper, `decoding.py`.
    """

    def __init__(self, tokens: SpeechTokens, language: int | None, task: int | None) -> None:
        self._tokens = tokens
        self._suppressed = np.array(tokens.suppressed, np.intp)
        self._first = np.array((*tokens.suppressed_first, *tokens.suppressed), np.intp)
        languages = tokens.languages.values() if language is None else (language,)
        self._languages = np.array([*languages] if tokens.languages else [], np.intp)
        self._forced = [] if task is None else [task]
        self._log_shares: FloatArray | None = None
        self._is_begun = False
        #: The token of its language, once chosen.
        self.language = language
        #: Text and times, without the end.
        self.ids: list[int] = []
        #: How probable it was, before a word, that there is no speech.
        self.no_speech = 0.0
        self._sum = 0.0

    @property
    def mean_logprob(self) -> float:
        """Of its tokens and its end."""
        return self._sum / (len(self.ids) + 1)

    def __call__(self, logits: FloatArray) -> None:
        if not self._is_begun:
            self._is_begun = True
            largest = logits.max()
            total = np.exp(logits - largest).sum()
            self.no_speech = float(np.exp(logits[self._tokens.no_speech] - largest) / total)
            if len(self._languages):
                kept = self._languages[logits[self._languages].argmax()]
                logits[:] = -np.inf
                logits[kept] = 0.0
                return
        self._keep_rules(logits)
        self._log_shares = logits.copy()

    def append(self, token: int) -> None:
        tokens = self._tokens
        if self._log_shares is None:  # language and task
            if token in tokens.languages.values():
                self.language = token
            return
        shares, largest = self._log_shares, self._log_shares.max()
        total = float(np.exp(shares - largest).sum())
        self._sum += float(shares[token] - largest) - float(np.log(total))
        if token != tokens.end:
            self.ids.append(token)

    @property
    def is_complete(self) -> bool:
        """Only the end token ends it."""
        return False

    def forced_tokens(self) -> list[int]:
        """The task, after the language."""
        forced, self._forced = self._forced, []
        return forced

    def num_allowed(self, tokens: list[int]) -> int:
        """None: nothing that was said before tells what is said next."""
        return 0

    def _keep_rules(self, logits: FloatArray) -> None:
        first, end, ids = self._tokens.first_time, self._tokens.end, self.ids
        if not ids:
            logits[self._first] = -np.inf
            logits[:first] = -np.inf
            logits[first + MOST_FIRST_STEPS + 1 :] = -np.inf
            return
        logits[self._suppressed] = -np.inf
        after_time = ids[-1] >= first
        after_two = after_time and (len(ids) < 2 or ids[-2] >= first)
        if after_two:
            logits[first:] = -np.inf
        elif after_time:
            logits[:end] = -np.inf
        last = next((each for each in reversed(ids) if each >= first), first - 1)
        # The end of a piece may be the beginning of the next.
        logits[first : last if after_time and not after_two else last + 1] = -np.inf
        times, text = logits[first:], logits[:first].max()
        largest = times.max()
        if largest > -np.inf and largest + np.log(np.exp(times - largest).sum()) > text:
            logits[:first] = -np.inf
