"""A request to the engine, and the sequence that is made of it."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from mrs.engine.draft_counts import DraftCounts
from mrs.errors import MrsError
from mrs.events import FinishReason
from mrs.process.turns import Client
from mrs.request import Sampling

if TYPE_CHECKING:
    from mrs.cache.sequence_cache import SequenceCache
    from mrs.engine.image_input import ImageInput
    from mrs.engine.pooling import Pooling
    from mrs.engine.prompt_lookup import PromptLookup
    from mrs.engine.prompt_scores import PromptScores
    from mrs.engine.sampling.processors import Constraint
    from mrs.engine.sampling.sampler import Proposal, SampledToken, Sampler
    from mrs.engine.token_score import LogitDifference


_LARGEST_SALT = 2**63 - 1


@dataclass(frozen=True)
class SequenceRequest:
    """A prompt as token ids, and how to continue it.

    The reply ends after one of `stop_ids`, and messages begin with one of `control_ids`.
    `dry_breakers` are the tokens that end a repetition for the DRY penalty. With `timeout_s` the
    reply fails unless it is complete by then. Only sequences with the same `prefix_salt` (63 bits)
    and adapter share prefixes. Sequences that wait have their turns by `client`. With `pooling` the
    prompt is embedded: there is no reply, and `sampling` has no effect; `token_types` then say to
    which of two texts each token belongs. With `scored` there is no reply either: the logits after
    the prompt make a score. A `constraint` belongs to this request alone.
    """

    prompt_ids: abc.Sequence[int]
    sampling: Sampling
    stop_ids: frozenset[int] = frozenset()
    dry_breakers: frozenset[int] = frozenset()
    images: abc.Sequence[ImageInput] = ()
    timeout_s: float | None = None
    prefix_salt: int = 0
    client: Client = ()
    pooling: Pooling | None = None
    token_types: abc.Sequence[int] = ()
    constraint: Constraint | None = None
    scored: LogitDifference | None = None
    control_ids: abc.Set[int] = frozenset()


@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens chosen after it, in `token_ids`, at most `max_length` of them.

    The first `num_computed_tokens` are in `cache`, which is None while none is allocated.
    `num_cached_tokens` of the prompt came from the prefix cache. The cache's states after
    `snapshots` tokens, in ascending order, are worth storing for others. Only sequences of the same
    `rope_epoch` can share caches. `draft` are guesses of the next tokens, which one step computes
    with the last one, and `proposals` the same with their probabilities, if they were drawn at
    random. `lookup` makes drafts without a model. `drafts` counts those that were computed.
    `arrival` numbers sequences in the order in which they came; `num_overtaken` counts the later
    ones that started earlier. `is_batched` is set once it shares a step. `deadline_s` is a time of
    `time.monotonic`, and `started_s` of `time.perf_counter`: when it first ran. A finished sequence
    has a `finish_reason`, and an `error` if that is what ended it. If it `is_undivided`, one step
    has to compute all of its tokens. `prompt_scores` get the log-probabilities of the prompt.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    max_length: int
    sampler: Sampler
    stop_ids: frozenset[int] = frozenset()
    images: tuple[ImageInput, ...] = ()
    deadline_s: float | None = None
    prefix_salt: int = 0
    pooling: Pooling | None = None
    adapter: str | None = None
    token_types: abc.Sequence[int] = ()
    is_undivided: bool = False
    scored: LogitDifference | None = None
    prompt_scores: PromptScores | None = None
    client: Client = ()
    control_ids: abc.Set[int] = frozenset()
    lookup: PromptLookup | None = None
    draft: list[int] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    cache: SequenceCache | None = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    rope_epoch: abc.Hashable = None
    snapshots: tuple[int, ...] = ()
    arrival: int = 0
    num_overtaken: int = 0
    num_preemptions: int = 0
    is_batched: bool = False
    is_aborted: bool = False
    started_s: float | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None

    @property
    def makes_reply(self) -> bool:
        """Whether tokens are chosen after the prompt; else it gets a vector, or scores alone."""
        return not self.has_vector and self.max_length > self.num_prompt_tokens

    @property
    def has_vector(self) -> bool:
        return self.pooling is not None or self.scored is not None

    @property
    def vector(self) -> abc.Sequence[float]:
        """The embedding of the prompt, or its scores, once it is finished."""
        maker = self.scored or self.pooling
        assert maker is not None
        return maker.values

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_decoding(self) -> bool:
        """Whether one token is all that has to be computed before the next can be chosen."""
        return self.num_computed_tokens == len(self.token_ids) - 1 and self.num_computed_tokens > 0

    @property
    def is_computed(self) -> bool:
        """Whether the next token can be chosen."""
        return self.num_computed_tokens == len(self.token_ids)

    @property
    def num_new_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def next_snapshot(self) -> int | None:
        """The next of the `snapshots` that is still to be computed."""
        return next((each for each in self.snapshots if each > self.num_computed_tokens), None)

    @property
    def prefix_keys(self) -> list[int]:
        """`token_ids` with an image's key instead of each of its tokens, and the salted first one.

        The token ids of all images are the same, but their contents in a cache are not.
        """
        salt = self.prefix_salt ^ _salt_of(self.adapter)
        if not self.images and not salt:
            return self.token_ids
        keys = list(self.token_ids)
        for image in self.images:
            for position in image.positions:
                keys[position] = image.key
        if salt:  # a negative number, as the keys of images are
            keys[0] = -1 - ((salt ^ keys[0]) & _LARGEST_SALT)
        return keys

    def forget_forbidden_draft(self) -> None:
        """Shorten the draft to what a grammar allows.

        One that was drawn at random stays as it is, so that the next token is distributed as it
        should: its forbidden tokens are not accepted.
        """
        if not self.proposals:
            del self.draft[self.sampler.num_allowed(self.draft) :]

    def drop_draft(self) -> None:
        self.draft, self.proposals = [], []

    def abort(self, error: Exception | None = None) -> None:
        """Let the engine end the sequence before its next step, with `error` if there is one.

        Any thread may call this.
        """
        self.error = error
        self.is_aborted = True

    def finish(self, reason: FinishReason, error: Exception | None = None) -> None:
        self.finish_reason, self.error = reason, error


class ScheduledSequence(NamedTuple):
    """The next `num_tokens` tokens of a sequence, its draft included, are computed in a step."""

    sequence: Sequence
    num_tokens: int


ScheduledBatch = list[ScheduledSequence]


class TokenOutput(NamedTuple):
    """The output of a step for one sequence: a token, its end, or both.

    A sequence that was aborted or failed ends without a token. `time_s` is when the step ended, a
    time of `time.perf_counter`.
    """

    sequence: Sequence
    token: SampledToken | None
    finish_reason: FinishReason | None
    time_s: float


@cache
def _salt_of(adapter: str | None) -> int:
    """63 bits that differ between adapters; 0 without one."""
    if adapter is None:
        return 0
    return int.from_bytes(sha256(adapter.encode()).digest()[:8], "little") & _LARGEST_SALT


class QueueFull(MrsError):
    """The queue of waiting requests is full."""

    def __init__(self, max_waiting: int) -> None:
        super().__init__(f"{max_waiting} requests are waiting already", hint="try again later")


class DeadlineExceeded(MrsError):
    """A reply took longer than its request allows."""

    def __init__(self) -> None:
        super().__init__("the reply took longer than its time limit", hint="allow more time")
