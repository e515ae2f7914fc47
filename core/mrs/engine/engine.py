"""Generates tokens: step by step, with all running sequences in one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.engine.burst import BURST_S, Burst
from mrs.engine.choose_tokens import add_token, choose_tokens
from mrs.engine.draft_counts import DraftCounts
from mrs.engine.prompt_scores import PromptScores
from mrs.engine.sampling.sampler import SampledToken, Sampler
from mrs.engine.scheduler import Scheduler
from mrs.engine.sequence import (
    DeadlineExceeded,
    ScheduledBatch,
    Sequence,
    SequenceRequest,
    TokenOutput,
)
from mrs.engine.step_budget import Chunk
from mrs.engine.worker import StepAborted, Worker
from mrs.errors import ContextFull, NotReadable, UsageError
from mrs.events import FinishReason
from mrs.model.caches_lost import CachesLost
from mrs.process.turns import Client

if TYPE_CHECKING:
    from mrs.engine.cache_manager import CacheManager
    from mrs.engine.decode_graph import DecodeGraphs
    from mrs.engine.drafter import VerifiedDrafts


class EngineStats(NamedTuple):
    """Counters: sequences that run and wait now; tokens and preemptions since the start.

    `cached_tokens` came from the prefix cache and were not computed; `queried_tokens` were looked
    up in it. `kv_cache_share` is the share of blocks that running sequences have. Of the
    `drafted_tokens` in `drafts`, which were all computed, `accepted_tokens` are in replies.
    Both are also counted as the first, second and so on of their draft: `…_by_position`.
    """

    running: int
    waiting: int
    cached_tokens: int
    computed_tokens: int
    preempted: int
    queried_tokens: int = 0
    kv_cache_share: float = 0.0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()


class Engine:
    """Works with token ids only. It has no thread: `step` computes in the caller's.

    A program does not step it in the main thread, where a Ctrl-C could come between two changes of
    the caches. Only `new_sequence` and `abort_all` may be called by other threads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        worker: Worker,
        scheduler: Scheduler,
        caches: CacheManager,
        *,
        context_tokens: int,
        pool_tokens: int | None = None,
        seed: int | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """With `graphs`, the steps that they can compute are theirs."""
        self.spec = spec
        #: The most tokens of a sequence: those of the model, or of the pool of all KV blocks.
        self.context_tokens = min(context_tokens, pool_tokens or context_tokens)
        is_model_larger = self.context_tokens < context_tokens
        self._holder = "KV cache" if is_model_larger else "model's context"
        self.scheduler = scheduler
        self.caches = caches
        self._worker = worker
        self._graphs = graphs
        self._drafter = scheduler.drafter
        self._seed = seed
        self._num_computed_tokens = 0
        self._drafts = DraftCounts()

    @property
    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.num_cached_tokens,
            self._num_computed_tokens,
            scheduler.num_preempted,
            scheduler.num_queried_tokens,
            self.caches.used_share(list(scheduler.running)),
            self._drafts.drafts,
            self._drafts.drafted_tokens,
            self._drafts.accepted_tokens,
            tuple(self._drafts.drafted),
            tuple(self._drafts.accepted),
        )

    def use_drafts(self, *, wanted: bool) -> None:
        """Whether later replies have drafts, if any do. Only while there are no sequences."""
        drafter = self._drafter if wanted else None
        self.scheduler.drafter = drafter
        self._worker.take_states(None if drafter is None else drafter.taker)

    def new_sequence(self, request: SequenceRequest) -> Sequence:
        """The sequence for a request, which is not scheduled yet.

        Raises UsageError for a prompt that cannot be continued, and NotReadable for a token
        without an embedding.
        """
        prompt_ids, sampling = list(request.prompt_ids), request.sampling
        if not prompt_ids:
            raise UsageError("the prompt has no tokens", hint="give it a text")
        self._check_length(request)
        rows = self.spec.vocab_size + self.spec.extra_tokens
        if max(prompt_ids) >= rows:
            raise NotReadable(
                f"the tokenizer makes token {max(prompt_ids)}, but the model has only {rows}",
                hint="use the tokenizer of the same model",
            )
        max_length = self.context_tokens
        if sampling.max_tokens is not None:
            max_length = min(max_length, len(prompt_ids) + sampling.max_tokens)
        self._worker.require_adapter(sampling.adapter)
        # Every reply has an rng of its own, so that none depends on another.
        seed = self._seed if sampling.seed is None else sampling.seed
        rng = Random() if seed is None else Random((seed + sampling.variant) % 2**64)
        timeout_s, scored = request.timeout_s, sampling.prompt_logprobs
        return Sequence(
            prompt_ids,
            len(prompt_ids),
            max_length,
            Sampler(
                sampling,
                prompt_ids,
                self.spec.vocab_size,
                rng,
                request.dry_breakers,
                request.constraint,
                stop_ids=request.stop_ids,
                is_seeded=seed is not None,
            ),
            request.stop_ids,
            tuple(request.images),
            None if timeout_s is None else time.monotonic() + timeout_s,
            request.prefix_salt,
            request.pooling,
            sampling.adapter,
            request.token_types,
            self.spec.attends_both_ways,
            request.scored,
            None if scored is None else PromptScores(prompt_ids, scored),
            request.client,
            request.control_ids,
        )

    def _check_length(self, request: SequenceRequest) -> None:
        """A reply needs room for a token; a text without one may fill the context."""
        tokens, most = len(request.prompt_ids), self.context_tokens
        if request.pooling is None:
            self.spec.require_replies()
            if tokens + (request.sampling.max_tokens != 0) > most:
                raise ContextFull(tokens, most, self._holder)
        elif tokens > most:
            hint = "shorten the text, or ask for it to be truncated"
            raise ContextFull(tokens, most, self._holder, hint)

    def add(self, request: SequenceRequest) -> Sequence:
        """Start a sequence. Raises UsageError, NotReadable and QueueFull."""
        sequence = self.new_sequence(request)
        self.scheduler.add(sequence)
        return sequence

    def step(self, may_go_on: Callable[[], bool] = lambda: False) -> list[TokenOutput]:
        """Compute a batch, and sample a token for each sequence whose tokens are all computed.

        Tokens that a grammar forces after it come with it; the next step computes them together.
        So do the tokens of its draft, as far as they are those that are chosen without a draft.
        A sequence that was aborted, missed its deadline or failed ends with an output without a
        token. If a layer raises a BaseException, the next step computes the same again.

        A sequence that has steps to itself may have several at once, a `Burst`; `may_go_on` is
        asked before each of them whether nobody else has come.
        """
        if torch.is_inference_mode_enabled():  # entering it anew would take as long as sampling
            return self._step(may_go_on)
        with torch.inference_mode():
            return self._step(may_go_on)

    def _step(self, may_go_on: Callable[[], bool]) -> list[TokenOutput]:
        begin_s = time.perf_counter()
        outputs = self._end_abandoned()
        batch = self.scheduler.schedule()
        if not batch:
            return outputs
        for sequence, _ in batch:
            if sequence.draft:
                self.caches.mark(sequence)
        start_s = time.perf_counter()
        try:
            drafter = self.scheduler.drafter
            # Only the worker hands out states.
            is_read = drafter is not None and drafter.taker(batch) is not None
            chosen = None if is_read or self._graphs is None else self._graphs.decode(batch)
            undisturbed_s = self.scheduler.undisturbed_s(batch)
            may_burst = chosen is None and undisturbed_s > 0 and may_go_on()
            burst = self._burst(batch) if may_burst and not is_read else None
            drafts = self._draft_burst(batch) if may_burst and is_read else None
            is_plain = chosen is None and burst is None and drafts is None
            logits = self._worker.forward(batch) if is_plain else None
        except StepAborted:
            self._rollback(batch)  # the next step ends the sequences
            return outputs
        except CachesLost:
            self._start_over()
            return outputs
        except Exception as error:  # noqa: BLE001 - raised where the replies are read
            self._rollback(batch)
            return outputs + [self._end(sequence, error) for sequence, _ in batch]
        except BaseException:
            self._rollback(batch)
            raise
        forward_s = time.perf_counter() - start_s
        own_s = self._own_s(batch, forward_s)
        is_decode = all(each.is_decoding for each, _ in batch)
        num_drafted = self._drafts.drafted_tokens
        if is_decode:
            self.scheduler.budget.measure_replies(forward_s)
        else:
            chunks = [
                Chunk(count, 0)
                if each.is_decoding
                else Chunk(count, each.num_computed_tokens, each.prompt_scores is not None)
                for each, count in batch
            ]
            self.scheduler.budget.measure(chunks, forward_s)
        for sequence, num_tokens in batch:
            sequence.num_computed_tokens += num_tokens - len(sequence.draft)
            sequence.is_batched |= len(batch) > 1
            self._num_computed_tokens += num_tokens
            if sequence.num_computed_tokens in (*sequence.snapshots, sequence.num_prompt_tokens):
                self.caches.store_prefix(sequence)
        complete = [each for each, _ in batch if each.is_computed]
        for sequence, token in zip(complete, chosen or (), strict=False):
            outputs += self._extend(sequence, add_token(sequence, token))
        if logits is not None:
            outputs += self._sample(complete, logits, own_s)
        latest_s = start_s + min(BURST_S, undisturbed_s) - forward_s
        if drafts is not None:
            outputs += self._verify(drafts, complete, may_go_on, latest_s)
        if burst is not None:
            tokens = burst.tokens(may_go_on, latest_s)
            outputs += self._extend(complete[0], tokens)
            self._num_computed_tokens += burst.num_further
        end_s = time.perf_counter()
        self.scheduler.own_time.settle(own_s, end_s - start_s)
        if is_decode and self.scheduler.drafter is not None:
            drafted = self._drafts.drafted_tokens - num_drafted
            steps = 1 if burst is None else 1 + burst.num_further
            steps = steps if drafts is None else drafts.num_steps
            self.scheduler.drafter.measure(batch, drafted, end_s - begin_s, steps)
        return outputs

    def _burst(self, batch: ScheduledBatch) -> Burst | None:
        """Compute a batch with which a burst begins; None if none does.

        The first ones of a reply are short, since its reader waits for how it begins.
        """
        sequence, num_tokens = batch[0]
        if len(batch) > 1 or num_tokens > 1 or not sequence.is_decoding:
            return None
        left = sequence.max_length - len(sequence.token_ids)
        most = min(sequence.num_new_tokens, left, self.caches.room(sequence))
        steps = self._worker.steps(batch, most) if most > 1 else None
        if steps is None:
            return None
        return Burst(sequence, steps, most, self.scheduler, self.caches)

    def _draft_burst(self, batch: ScheduledBatch) -> VerifiedDrafts | None:
        """Compute a batch of drafts with which a burst of them begins; None if none does."""
        drafter, sequences = self.scheduler.drafter, [each for each, _ in batch]
        if drafter is None or not drafter.can_burst(batch):
            return None
        caches = [each.cache for each in sequences if each.cache is not None]
        if self.caches.has_windows or any(cache.has_states for cache in caches):
            return None
        room = min(map(self.caches.room, sequences))
        if room <= max(count for _, count in batch):
            return None
        steps = self._worker.steps(batch, room, is_read=True)
        return None if steps is None else drafter.burst(batch, steps, room)

    def _verify(
        self,
        drafts: VerifiedDrafts,
        sequences: list[Sequence],
        may_go_on: Callable[[], bool],
        latest_s: float,
    ) -> list[TokenOutput]:
        """Choose the tokens of verified drafts, then go on drafting and verifying.

        The caller counts the first step, as it does one without a burst.
        """
        outputs: list[TokenOutput] = []
        try:
            while True:
                for sequence, rows in zip(sequences, drafts.logits(), strict=True):
                    outputs += self._extend(sequence, choose_tokens(sequence, rows))
                is_late = time.perf_counter() > latest_s
                if is_late or not drafts.may_go_on or not may_go_on():
                    break
                drafts.draft()
                for sequence in sequences:
                    self.caches.extend(sequence, 1 + len(sequence.draft))
                drafts.verify()
                for sequence in sequences:
                    self._num_computed_tokens += 1 + len(sequence.draft)
                    sequence.num_computed_tokens += 1
            drafts.end()
        except BaseException as error:
            running = [each for each in sequences if not each.is_finished]
            for sequence in running:
                sequence.drop_draft()
                self.caches.rollback(sequence)
                if self.scheduler.drafter is not None:
                    self.scheduler.drafter.free(sequence)
            if not isinstance(error, Exception):
                raise
            outputs += [self._end(sequence, error) for sequence in running]
        return outputs

    def _own_s(self, batch: ScheduledBatch, forward_s: float) -> dict[Client, float]:
        """What the clients' prompts have taken of a forward pass, beyond a pass without any."""
        own_s = {sequence.client: 0.0 for sequence, _ in batch}
        prompts = [(each, count) for each, count in batch if not each.is_decoding]
        if prompts and len(own_s) > 1:
            reply_s = self.scheduler.budget.reply_s or 0.0
            token_s = max(forward_s - reply_s, 0.0) / sum(count for _, count in prompts)
            for sequence, count in prompts:
                own_s[sequence.client] += token_s * count
        return own_s

    def abort_all(self, error: Exception) -> None:
        """Let every sequence end with `error` before the next step. Any thread may call this."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            sequence.abort(error)

    def close(self) -> None:
        """Wait until the prefix cache has written its files."""
        self.caches.close()

    def _end_abandoned(self) -> list[TokenOutput]:
        """End the sequences that were aborted or missed their deadlines."""
        outputs, now_s = [], time.monotonic()
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            deadline_s = sequence.deadline_s
            if sequence.is_aborted:
                outputs.append(self._end(sequence, sequence.error))
            elif deadline_s is not None and now_s > deadline_s:
                outputs.append(self._end(sequence, DeadlineExceeded()))
        return outputs

    def _start_over(self) -> None:
        """Let all sequences go on without caches; the prefix cache is empty."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            sequence.drop_draft()
            self.caches.invalidate(sequence)
        self.caches.drop_prefixes()

    def _rollback(self, batch: ScheduledBatch) -> None:
        for sequence, _ in batch:
            sequence.drop_draft()
            self.caches.rollback(sequence)

    def _sample(
        self, complete: list[Sequence], logits: Tensor, own_s: dict[Client, float]
    ) -> list[TokenOutput]:
        """The next tokens after logits (W, V), which are overwritten. Errors end one sequence.

        The time that each takes is added to its client's `own_s`.
        """
        rows = iter(logits.numpy())
        outputs: list[TokenOutput] = []
        for sequence in complete:
            own = list(islice(rows, 1 + len(sequence.draft)))
            start_s = time.thread_time()
            if not sequence.makes_reply:
                if sequence.scored is not None:
                    sequence.scored.take(own[0])
                reason: FinishReason = "stop" if sequence.has_vector else "length"
                sequence.finish(reason)
                self._release(sequence)
                outputs.append(TokenOutput(sequence, None, reason, time.perf_counter()))
                continue
            outputs += self._extend(sequence, choose_tokens(sequence, own))
            own_s[sequence.client] += time.thread_time() - start_s
        return outputs

    def _extend(self, sequence: Sequence, chosen: Iterator[SampledToken]) -> list[TokenOutput]:
        """Output the tokens that `chosen` adds to a sequence."""
        tokens: list[SampledToken] = []
        times_s: list[float] = []
        error = None
        try:
            for token in chosen:  # each counts if an error follows
                tokens.append(token)
                times_s.append(time.perf_counter())
        except Exception as raised:  # noqa: BLE001 - raised where the reply is read
            error = raised
        self._settle_draft(sequence, tokens)
        pairs = zip(tokens, times_s, strict=True)
        outputs = [TokenOutput(sequence, token, None, time_s) for token, time_s in pairs]
        if error is not None:
            return [*outputs, self._end(sequence, error)]
        outputs[-1] = outputs[-1]._replace(finish_reason=sequence.finish_reason)
        if sequence.is_finished:
            self._release(sequence)
        elif self.caches.needs_recompute(sequence):
            self.caches.invalidate(sequence)
        return outputs

    def _settle_draft(self, sequence: Sequence, chosen: list[SampledToken]) -> None:
        """Keep what the cache has of the `chosen` tokens but the last, and drop the rest."""
        draft = sequence.draft
        sequence.drop_draft()
        if not draft or self.scheduler.drafter is None:
            return
        same = takewhile(lambda pair: pair[0] == pair[1].id, zip(draft, chosen, strict=False))
        accepted = len(list(same))
        self.scheduler.drafter.learn(sequence, len(draft), accepted)
        sequence.num_computed_tokens += min(accepted, max(len(chosen) - 1, 0))
        self.caches.drop_rejected(sequence)
        sequence.drafts.add(len(draft), accepted)
        sequence.drafts.plain_s = self.scheduler.drafter.plain_s
        self._drafts.add(len(draft), accepted)

    def _end(self, sequence: Sequence, error: Exception | None) -> TokenOutput:
        sequence.finish("cancelled", error)
        self._release(sequence)
        return TokenOutput(sequence, None, sequence.finish_reason, time.perf_counter())

    def _release(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.caches.free(sequence)
