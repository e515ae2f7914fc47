"""Compiles grammars for a model's vocabulary, and remembers the last ones."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from mrs.grammar.limits import parser_limits, with_deep_stack
from mrs.grammar.mask import MOST_FORCED, GrammarMask
from mrs.grammar.source import grammars_of, invalid, too_complex, too_long
from mrs.grammar.thought import Thought, after_thought
from mrs.grammar.trial import TooMuchWork, trial
from mrs.grammar.vocabulary import controls_of, read_vocabulary
from mrs.process.memory_room import MemoryRoom
from mrs.process.work import TurnLock
from mrs.request import Grammar
from mrs.text.thoughts import USUAL, ThoughtMarks
from mrs.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

_Key = tuple[Grammar, Thought]

_MAX_COMPILED = 32
#: How long a grammar waits until replies have given room back.
_WAIT_S = 5.0
#: What all remembered grammars may have, by the estimate of `_BYTES_PER_SECOND`.
_MOST_BYTES = 128 * 2**20
#: llguidance does not tell what a grammar takes. Memory grows with the work of compiling: by 170 to
#: 280 MiB a second of processor time, measured on regular expressions; faster machines make more.
_BYTES_PER_SECOND = 512 * 2**20
#: One grammar is compiled at a time: a plan counts the memory for it, and each takes little time.
_turn = TurnLock()


@dataclass(eq=False, frozen=True)
class _Compiled:
    """A compiled grammar, and about how much memory it has."""

    matcher: llguidance.LLMatcher
    num_bytes: int


@dataclass(eq=False, frozen=True)
class _Use:
    """A compiled grammar while replies have it."""

    compiled: _Compiled


class _Remembered(NamedTuple):
    compiled: _Compiled
    owner: bytes


class GrammarCompiler:
    """The compiled grammars of one model, of which the last ones are remembered. Thread-safe.

    All that are remembered, and all that replies have, take at most half of `most_bytes` each; by
    default, what replies have is not limited. Of remembered ones, those of the owner that has most
    are forgotten first. Its logits have `vocab_size` values, `end_ids` end a reply, and thoughts
    are in `marks`.
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
        self._controls = controls_of(tokenizer, vocab_size, end_ids)
        self._remembered: OrderedDict[_Key, _Remembered] = OrderedDict()
        self._used: WeakValueDictionary[_Key, _Use] = WeakValueDictionary()
        self._room = MemoryRoom()
        self._remembered_bytes = _MOST_BYTES
        self._read: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()
        self._is_tried = False

    def limit(self, most_bytes: int) -> None:
        """Enforce another limit from now on; grammars of strangers come from now on.

        Each is compiled in a process of its own first, which may take MAX_SECONDS of a processor.
        """
        self._remembered_bytes = self._room.most_bytes = most_bytes // 2
        self._is_tried = True

    def prepare(self) -> None:
        """Do now what the first grammar would wait for. Raises MrsError.

        Reading a large vocabulary takes a second, in which no other thread of Python goes on.
        """
        self._vocabulary()
        if self._is_tried:
            trial.start()

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._read is None:
                self._read = read_vocabulary(self._tokenizer, self._controls)
            return self._read

    def mask(
        self, grammar: Grammar, thought: Thought = Thought.NONE, *, is_greedy: bool = False
    ) -> GrammarMask:
        """The mask of a new reply; arguments and errors are those of `masks`."""
        return self.masks(grammar, thought, is_greedy=is_greedy)()

    def masks(
        self,
        grammar: Grammar,
        thought: Thought = Thought.NONE,
        *,
        is_greedy: bool = False,
        owner: bytes = b"",
    ) -> Callable[[], GrammarMask]:
        """Makes the masks of new replies, whose grammar begins after their thought.

        Raises UsageError for a grammar that is not valid, Unsupported for one with parts that
        cannot be enforced, and NoRoom if replies have too many others.
        """
        key = grammar, thought
        with self._lock:
            use = self._used.get(key)
        if use is None:
            use = self._use(key)
        self._remember(key, use.compiled, owner)
        return lambda: GrammarMask(use.compiled.matcher.deep_copy(), is_greedy=is_greedy)

    def _use(self, key: _Key) -> _Use:
        with self._lock:
            remembered = self._remembered.get(key)
        if remembered is not None:
            compiled = remembered.compiled
        else:
            with _turn:
                compiled = self._compile(*key)
        most = self._room.most_bytes
        taken = compiled.num_bytes if most is None else min(compiled.num_bytes, most)
        self._room.take(taken, "grammars", _WAIT_S)
        use = _Use(compiled)
        self._room.give_back_with(use, taken)
        with self._lock:
            self._used[key] = use
        return use

    def _remember(self, key: _Key, compiled: _Compiled, owner: bytes) -> None:
        """Remember a grammar, and forget some of the owner that has most, the oldest first."""
        if compiled.num_bytes > self._remembered_bytes:
            return
        with self._lock:
            kept = self._remembered
            kept[key] = _Remembered(compiled, owner)
            kept.move_to_end(key)
            while len(kept) > _MAX_COMPILED or _bytes_of(kept.values()) > self._remembered_bytes:
                del kept[_next_to_forget(kept)]

    def _compile(self, grammar: Grammar, thought: Thought) -> _Compiled:
        marks = self._marks.before_calls if grammar.kind == "tool_calls" else self._marks

        def form() -> str:
            grammars = after_thought(grammars_of(grammar), thought, self._tokenizer, marks)
            return json.dumps({"grammars": grammars})

        text = with_deep_stack(form)
        if self._is_tried:
            self._try(grammar, text)
        vocabulary = self._vocabulary()
        return with_deep_stack(lambda: _compiled(grammar, text, vocabulary))

    def _try(self, grammar: Grammar, form: str) -> None:
        """Raise UsageError or Unsupported if a process of its own cannot compile a grammar."""
        try:
            message = trial.message(form, self._controls)
        except TooMuchWork:
            raise too_complex(grammar) from None
        if message:
            raise invalid(grammar, message)


def _compiled(grammar: Grammar, form: str, vocabulary: llguidance.LLTokenizer) -> _Compiled:
    import llguidance

    start_s = time.thread_time()
    matcher = llguidance.LLMatcher(vocabulary, form, log_level=0, limits=parser_limits())
    if matcher.is_error():
        raise invalid(grammar, matcher.get_error())
    matcher.compute_bitmask()  # a later reply finds its beginning done
    if matcher.is_error():
        raise invalid(grammar, "no text can follow it")
    if len(matcher.compute_ff_bytes()) > MOST_FORCED:
        raise too_long(grammar, MOST_FORCED)
    return _Compiled(matcher, int((time.thread_time() - start_s) * _BYTES_PER_SECOND))


def _bytes_of(remembered: Iterable[_Remembered]) -> int:
    return sum(each.compiled.num_bytes for each in remembered)


def _next_to_forget(remembered: Mapping[_Key, _Remembered]) -> _Key:
    """The oldest one of the owner that has the largest share of bytes or of places."""
    shares: defaultdict[bytes, float] = defaultdict(float)
    total_bytes = max(_bytes_of(remembered.values()), 1)
    for each in remembered.values():
        shares[each.owner] += each.compiled.num_bytes / total_bytes + 1 / len(remembered)
    most = max(shares.values())
    return next(key for key, each in remembered.items() if shares[each.owner] == most)


def check_grammar(grammar: Grammar) -> None:
    """Raise UsageError or Unsupported for a grammar that no model can follow."""

    def check() -> None:
        import llguidance

        form = json.dumps({"grammars": grammars_of(grammar)})
        if message := llguidance.LLMatcher.validate_grammar(form, limits=parser_limits()):
            raise invalid(grammar, message)

    with _turn:
        with_deep_stack(check)
