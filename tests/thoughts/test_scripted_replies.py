"""Budgets of thoughts, to the token, for a model that writes what a test says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from styles import STYLES, Style

from mrs.engine.choose_tokens import choose_tokens
from mrs.engine.prompt import Prompt
from mrs.engine.reply_events import ReplyEvents
from mrs.engine.sampling.sampler import Sampler
from mrs.engine.sequence import Sequence as EngineSequence
from mrs.engine.sequence import TokenOutput
from mrs.events import Finished, TextDelta
from mrs.grammar.compiler import GrammarCompiler
from mrs.grammar.thought import thought_after
from mrs.request import Grammar, Message, ModelSource, RunRequest, Sampling
from mrs.run.thinking_settings import ThinkingSettings
from mrs.text.text_processor import TextProcessor
from mrs.text.thought_splitter import ThoughtSplitter

QUESTION: list[Message] = [{"role": "user", "content": "Is it?"}]
WORDS, ANSWER = " so a b c d", "Yes."
MOST = 60


class Reply:
    """A reply of a model that thinks `length` tokens, and whose draft is always right or wrong."""

    def __init__(
        self,
        style: Style,
        budget: int | None,
        *,
        length: int = 10**9,
        thinks: bool = True,
        message: str | None = None,
        form: Grammar | None = None,
        draft: Sequence[str] | None = None,
        logprobs: int | None = None,
        has_calls: bool = False,
        is_stubborn: bool = False,
        temperature: float = 0.0,
    ) -> None:
        self.style, self.text, self.length, self.thinks = style, style.text, length, thinks
        self.is_stubborn = is_stubborn
        sampling = Sampling(
            temperature=temperature,
            top_k=0, top_p=1.0, min_p=0.0, frequency_penalty=0.0, presence_penalty=0.0,
            reasoning_budget=budget, reasoning_budget_message=message, logprobs=logprobs,
        )  # fmt: skip
        ids = self.text.prompt_ids(QUESTION)
        prompt = Prompt(
            ids,
            self.text.opening(ids),
            is_chat=True,
            new_thoughts=self.text.new_thoughts(ids, has_calls=has_calls),
        )
        self.vocab_size = max(self.text.tokenizer.added_ids.values()) + 1
        if form is not None:
            thought = thought_after(self.text, ids, None)
            compiler = GrammarCompiler(
                self.text.tokenizer, self.vocab_size, self.text.stop_ids, self.text.marks
            )
            masks = compiler.masks(form, thought, is_greedy=temperature == 0)
            prompt = Prompt(**{**vars(prompt), "new_constraint": masks, "has_grammar": True})
        settings = ThinkingSettings(self.text, RunRequest(ModelSource("x", "safetensors")))
        prompt = settings.limited(prompt, sampling, None, room=MOST, has_calls=has_calls)
        constraint = prompt.new_constraint() if prompt.new_constraint else None
        sampler = Sampler(
            sampling, ids, self.vocab_size, Random(1), constraint=constraint, is_seeded=True
        )
        stop = self.text.stop_ids
        self.sequence = EngineSequence(list(ids), len(ids), len(ids) + MOST, sampler, stop)
        events = ReplyEvents(self.sequence, self.text, prompt, sampling)
        while not self.sequence.is_finished:
            self._draft(draft)
            drafted = [*self.sequence.draft]
            given = [*self.sequence.token_ids]
            rows = [self._logits([*given, *drafted[:n]]) for n in range(1 + len(drafted))]
            for token in choose_tokens(self.sequence, rows):
                events.take(TokenOutput(self.sequence, token, None, 0.0))
            self.sequence.drop_draft()
        events.finish("stop")
        *deltas, end = events.queue
        assert isinstance(end, Finished)
        self.usage = end.usage
        self.said = "".join(each.text for each in deltas if isinstance(each, TextDelta))
        splitter = ThoughtSplitter()
        parts = [*splitter.feed(self.said), *splitter.finish()]
        self.thought = "".join(text for is_thought, text in parts if is_thought)
        self.answer = "".join(text for is_thought, text in parts if not is_thought)

    @property
    def tokens(self) -> list[int]:
        return self.sequence.token_ids[self.sequence.num_prompt_tokens :]

    @property
    def raw(self) -> str:
        return decoded(self.text, self.tokens)

    def _draft(self, draft: Sequence[str] | None) -> None:
        """Propose what the model would write, or something else, far beyond any budget."""
        if draft is None:
            return
        found: list[int] = []
        for _ in range(7):
            found.append(self._next([*self.sequence.token_ids, *found]))
        self.sequence.draft = found if draft == "right" else found[:2] + self._ids("zz")
        self.sequence.forget_forbidden_draft()

    def _logits(self, tokens: list[int]) -> np.ndarray:
        logits = np.zeros(self.vocab_size, np.float32)
        logits[self._next(tokens)] = 9
        return logits

    def _next(self, tokens: list[int]) -> int:
        """What the model writes next: a mark, a thought of `length` tokens, a mark, the answer."""
        reply = tokens[self.sequence.num_prompt_tokens :]
        style, raw = self.style, decoded(self.text, reply)
        begun = style.is_open or not self.thinks
        opening = [] if begun else self._ids(style.open)
        if not self.thinks:
            opening = self._ids(style.plain)
        if len(reply) < len(opening):
            return opening[len(reply)]
        _, closed, after = raw.partition(style.close.strip())
        if not self.thinks:
            return self._following(self._ids(ANSWER), reply[len(opening) :])
        if closed and self.is_stubborn:  # it thinks again, until it is in the answer's channel
            said = raw.rpartition("<|start|>assistant")[2]
            is_answer = said.startswith("<|channel|>final<|message|>")
            again = style.plain + ANSWER if is_answer else style.open + WORDS * 3
            return self._following(self._ids(again), self._ids(said))
        if closed:
            return self._following(self._ids(style.after + ANSWER), self._ids(after.lstrip()))
        inside = reply[len(opening) :]
        if len(inside) < self.length:
            words = self._ids(WORDS)
            return words[len(inside) % len(words)]
        return self._ids(style.close)[len(inside) - self.length]

    def _following(self, wanted: list[int], written: list[int]) -> int:
        if written[: len(wanted)] == wanted:
            return min(self.text.stop_ids)
        return wanted[min(len(written), len(wanted) - 1)]

    def _ids(self, text: str) -> list[int]:
        return self.text.tokenizer.encode_next(text, allow_special=True)


def decoded(text: TextProcessor, tokens: Sequence[int]) -> str:
    names = {i: name.encode() for name, i in text.tokenizer.control_ids.items()}
    pieces = (names.get(token) or text.tokenizer.piece(token) for token in tokens)
    return b"".join(pieces).decode("utf-8", "replace")


def recounted(reply: Reply) -> int:
    """The tokens up to the one with which the closing mark is complete."""
    close = reply.style.close.strip() if not reply.style.is_harmony else "<|end|>"
    ends = (
        n for n in range(len(reply.tokens) + 1) if close in decoded(reply.text, reply.tokens[:n])
    )
    return next(ends, 0)


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> Style:
    return STYLES[str(request.param)]


@pytest.mark.few(9)
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_thought_ends_after_its_budget(style: Style, budget: int) -> None:
    reply = Reply(style, budget)
    opening = [] if style.is_open else reply._ids(style.open)
    words = (reply._ids(WORDS) * 9)[:budget]
    close = reply._ids(style.close)
    assert reply.tokens[: len(opening) + budget + len(close)] == [*opening, *words, *close]
    assert reply.answer.strip() == ANSWER
    assert reply.thought.strip() == decoded(reply.text, words).strip()
    assert reply.usage.reasoning_tokens == recounted(reply) == len(opening) + budget + len(close)


@pytest.mark.few(9)
@pytest.mark.parametrize("length", [0, 4, 9])
def test_a_thought_that_ends_earlier_is_the_same(style: Style, length: int) -> None:
    free = Reply(style, None, length=length)
    assert free.answer.strip() == ANSWER
    assert free.usage.reasoning_tokens == recounted(free)
    for budget in (length + len(free._ids(style.close)), 50, -1):
        bound = Reply(style, budget, length=length)
        assert (bound.tokens, bound.said) == (free.tokens, free.said)


def test_an_answer_without_a_thought_has_no_budget(style: Style) -> None:
    if style.is_open:
        return
    reply = Reply(style, 0, thinks=False)
    assert (reply.said.strip(), reply.usage.reasoning_tokens) == (ANSWER, 0)
    assert reply.tokens == Reply(style, None, thinks=False).tokens


def test_the_message_stands_before_the_end(style: Style) -> None:
    reply = Reply(style, 3, message=" Enough <|im_end|>!")
    assert reply.thought.strip().endswith(" Enough <|im_end|>!")
    assert reply.answer.strip() == ANSWER
    assert reply.usage.reasoning_tokens == recounted(reply)


@pytest.mark.values
@pytest.mark.parametrize("draft", ["right", "wrong"])
@pytest.mark.parametrize("budget", [0, 5])
def test_drafts_do_not_slip_through(style: Style, budget: int, draft: str) -> None:
    assert Reply(style, budget, draft=draft).tokens == Reply(style, budget).tokens


@pytest.mark.few(3)
def test_with_log_probabilities_and_at_random(style: Style) -> None:
    plain = Reply(style, 5)
    assert Reply(style, 5, logprobs=0).tokens == plain.tokens
    random = Reply(style, 5, temperature=0.2)
    assert random.usage.reasoning_tokens == plain.usage.reasoning_tokens


@pytest.mark.values
@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("draft", [None, "right"])
def test_a_grammar_begins_after_the_end(style: Style, budget: int, draft: str | None) -> None:
    reply = Reply(style, budget, form=Grammar("regex", "(Yes|No)[.]"), draft=draft)
    assert re.fullmatch(r"\s*(Yes|No)\.", reply.answer)
    assert reply.usage.reasoning_tokens == recounted(reply)


def test_a_character_is_not_divided() -> None:
    style = STYLES["qwen"]
    reply = Reply(style, None)
    bead = reply.text.tokenizer.encode("\U0001f9ff", allow_special=False)
    assert len(bead) > 1, "the tokenizer divides it"
    thoughts = reply.text.new_thoughts(reply.text.prompt_ids(QUESTION), has_calls=False)
    assert thoughts is not None
    follows = thoughts()
    for token in [*reply._ids("<think>"), *bead[:-1]]:
        follows.push(token)
    assert follows.is_divided
    follows.push(bead[-1])
    assert not follows.is_divided


def test_channels_go_on_with_a_call() -> None:
    """With tools, another message may follow the thought, and a further thought ends at once."""
    reply = Reply(STYLES["harmony"], 4, has_calls=True)
    end = reply._ids("<|end|><|start|>assistant")
    start = len(reply._ids(STYLES["harmony"].open)) + 4
    assert reply.tokens[start : start + len(end)] == end


def test_a_thought_that_begins_again_ends_in_the_answer() -> None:
    reply = Reply(STYLES["harmony"], 4, has_calls=True, is_stubborn=True)
    assert reply.raw.count("<|channel|>analysis<|message|><|end|>") == 1
    assert reply.answer.strip() == ANSWER
