"""Compiles grammars for a model's vocabulary, and remembers the last ones."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

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
#: What all remembered grammars may have, by the estimate of `_bytes_of`.
_MOST_BYTES = 256 * 2**20
#: llguidance does not tell what a grammar takes. Memory grows with the work of compiling: by 170 to
#: 280 MiB a second of processor time, measured on regular expressions; faster machines make more.
_BYTES_PER_SECOND = 512 * 2**20
#: llguidance recurses; a nested grammar overflows the stack that threads usually have.
_STACK_BYTES = 64 * 2**20
#: Held while the depth of new stacks, a setting of the whole process, is another.
_stack_lock = threading.Lock()


class _Compiled(NamedTuple):
    """A compiled grammar, and about how much memory it has."""

    matcher: llguidance.LLMatcher
    num_bytes: float


class GrammarCompiler:
    """The compiled grammars of one model, of which the last ones are kept. Thread-safe.

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
        self._compiled: OrderedDict[tuple[Grammar, Thought], _Compiled] = OrderedDict()
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
            vocabulary = self._vocabulary()
            compiled = _with_deep_stack(lambda: self._compile(grammar, thought, vocabulary))
        self._keep(key, compiled)
        return lambda: GrammarMask(compiled.matcher.deep_copy(), is_greedy=is_greedy)

    def _keep(self, key: tuple[Grammar, Thought], compiled: _Compiled) -> None:
        """Remember a grammar, and forget those that were not used for longest."""
        with self._lock:
            kept = self._compiled
            kept[key] = compiled
            kept.move_to_end(key)
            while len(kept) > _MAX_COMPILED or _bytes_of(kept.values()) > _MOST_BYTES:
                kept.popitem(last=False)

    def _compile(
        self, grammar: Grammar, thought: Thought, vocabulary: llguidance.LLTokenizer
    ) -> _Compiled:
        import llguidance

        start_s = time.thread_time()
        marks = self._marks.before_calls if grammar.kind == "tool_calls" else self._marks
        grammars = after_thought(grammars_of(grammar), thought, self._tokenizer, marks)
        matcher = llguidance.LLMatcher(
            vocabulary,
            json.dumps({"grammars": grammars}),
            log_level=0,
            limits=_limits(),
        )
        if matcher.is_error():
            raise invalid(grammar, matcher.get_error())
        matcher.compute_bitmask()  # a later reply finds its beginning done
        if matcher.is_error():
            raise invalid(grammar, "no text can follow it")
        return _Compiled(matcher, (time.thread_time() - start_s) * _BYTES_PER_SECOND)


def _bytes_of(compiled: Iterable[_Compiled]) -> float:
    return sum(each.num_bytes for each in compiled)


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

    thread = threading.Thread(target=run, name="mrs-grammar", daemon=True)
    with _stack_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            raise UsageError("no memory to compile a grammar", hint="raise the limit") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
