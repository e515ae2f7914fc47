"""Compiles grammars for a model's vocabulary, and remembers the last ones."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mrs.errors import UsageError
from mrs.grammar.mask import GrammarMask
from mrs.grammar.source import grammars_of, invalid
from mrs.grammar.thought import Thought, after_thought
from mrs.grammar.vocabulary import read_vocabulary
from mrs.request import Grammar
from mrs.text.thoughts import USUAL, ThoughtMarks
from mrs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

T = TypeVar("T")

_MAX_COMPILED = 32
#: llguidance recurses; a nested grammar overflows the stack that threads usually have.
_STACK_BYTES = 64 * 2**20


class GrammarCompiler:
    """The compiled grammars of one model. Thread-safe.

    Its logits have `vocab_size` values, `end_ids` end a reply, and thoughts are in `marks`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        end_ids: frozenset[int],
        marks: ThoughtMarks | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._marks = marks or USUAL
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._compiled: OrderedDict[tuple[Grammar, Thought], llguidance.LLMatcher] = OrderedDict()
        self._read: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._read is None:
                self._read = read_vocabulary(self._tokenizer, self._vocab_size, self._end_ids)
            return self._read

    def mask(
        self, grammar: Grammar, thought: Thought = Thought.NONE, *, is_greedy: bool = False
    ) -> GrammarMask:
        """The mask of a new reply; arguments and errors are those of `masks`."""
        return self.masks(grammar, thought, is_greedy=is_greedy)()

    def masks(
        self, grammar: Grammar, thought: Thought = Thought.NONE, *, is_greedy: bool = False
    ) -> Callable[[], GrammarMask]:
        """Makes the masks of new replies, whose grammar begins after their thought.

        Raises UsageError for a grammar that is not valid, and Unsupported for one with parts that
        cannot be enforced.
        """
        key = grammar, thought
        with self._lock:
            compiled = self._compiled.get(key)
        if compiled is None:  # other grammars do not wait for this one
            compiled = _with_deep_stack(lambda: self._compile(grammar, thought))
        with self._lock:
            self._compiled[key] = compiled
            self._compiled.move_to_end(key)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return lambda: GrammarMask(compiled.deep_copy(), is_greedy=is_greedy)

    def _compile(self, grammar: Grammar, thought: Thought) -> llguidance.LLMatcher:
        import llguidance

        marks = self._marks.before_calls if grammar.kind == "tool_calls" else self._marks
        grammars = after_thought(grammars_of(grammar), thought, self._tokenizer, marks)
        matcher = llguidance.LLMatcher(
            self._vocabulary(),
            json.dumps({"grammars": grammars}),
            log_level=0,
            limits=_limits(),
        )
        if matcher.is_error():
            raise invalid(grammar, matcher.get_error())
        matcher.compute_bitmask()  # a later reply finds its beginning done
        if matcher.is_error():
            raise invalid(grammar, "no text can follow it")
        return matcher


def check_grammar(grammar: Grammar) -> None:
    """Raise UsageError or Unsupported for a grammar that no model can follow."""

    def check() -> None:
        import llguidance

        form = json.dumps({"grammars": grammars_of(grammar)})
        if message := llguidance.LLMatcher.validate_grammar(form, limits=_limits()):
            raise invalid(grammar, message)

    _with_deep_stack(check)


def _limits() -> llguidance.LLParserLimits:
    import llguidance

    return llguidance.LLParserLimits(verbose_errors=False)


def _with_deep_stack(compute: Callable[[], T]) -> T:
    """The result of `compute`, called in a thread with a deep stack."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(compute())
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="mrs-grammar", daemon=True)
        thread.start()
    except RuntimeError as error:
        raise UsageError("no memory to compile a grammar", hint="raise the limit") from error
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
