"""Requests of branching conversations, and their replies in every way that they can be computed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

from mrs.engine.drafter import Drafter
from mrs.engine.loop import EngineLoop
from mrs.engine.sequence import Sequence as EngineSequence
from mrs.engine.sequence import SequenceRequest
from mrs.model.decoder import Decoder
from mrs.request import Sampling
from mrs.text.tokenizer import Tokenizer
from support.engines import make_engine

THREADS, TURNS, REPLY_TOKENS = 4, 5, 8
_GREEDY = Sampling(
    temperature=0, max_tokens=REPLY_TOKENS, frequency_penalty=0, presence_penalty=0, logprobs=0
)
_SUBJECTS = ("rivers", "planets", "bread", "chess", "glass", "bridges", "clocks", "trees")
_QUESTIONS = (
    "Tell me about {}.",
    "Why do people like {}?",
    "Write a short Python function named {}() that returns 42.",
    "List three facts about {}, and explain each of them in a sentence of its own.",
    "And what about {}?",
)


@dataclass(frozen=True)
class Way:
    """How requests are computed."""

    cached: bool
    threads: int
    chunk_tokens: int
    drafts: bool = False

    def __str__(self) -> str:
        cache = "cache" if self.cached else "no cache"
        drafts = ", drafts" if self.drafts else ""
        return f"{cache}, {self.threads} threads, chunks of {self.chunk_tokens}{drafts}"


WAYS = [Way(*way) for way in product((True, False), (1, THREADS), (7, 64, 512), (False, True))]
#: Alone, from nothing, in one chunk, token by token.
PLAIN_WAY = Way(cached=False, threads=1, chunk_tokens=512)
#: Token ids, and the log-probability of each.
Reply = tuple[list[int], list[float]]


def branching_prompts(tokenizer: Tokenizer, conversations: int, seed: int = 0) -> list[list[int]]:
    """Prompts of `TURNS` requests for each conversation; most branch off an earlier one."""
    chooser = random.Random(seed)
    all_turns: list[list[str]] = []
    prompts = []
    for _ in range(conversations):
        earlier = chooser.choice(all_turns) if all_turns and chooser.random() < 0.8 else []
        turns = earlier[: chooser.randint(0, len(earlier))]
        while len(turns) < TURNS:
            question = chooser.choice(_QUESTIONS).format(chooser.choice(_SUBJECTS))
            turns.append(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        all_turns.append(turns)
        for count in range(1, TURNS + 1):
            text = "I see.<|im_end|>\n".join(turns[:count])
            prompts.append(tokenizer.encode(text, allow_special=True))
    return prompts


class _HalfRight(Drafter):
    """Drafts tokens of known replies, of which every third one is another."""

    def __init__(self, prompts: Sequence[Sequence[int]], known: Sequence[Reply]) -> None:
        self._known = {tuple(p): tokens for p, (tokens, _) in zip(prompts, known, strict=True)}

    def draft(self, wanted: Mapping[EngineSequence, int]) -> None:
        for sequence, most_tokens in wanted.items():
            known = self._known[tuple(sequence.token_ids[: sequence.num_prompt_tokens])]
            after = range(sequence.num_new_tokens, len(known))[:most_tokens]
            sequence.draft = [known[n] ^ (n % 3 == 2) for n in after]


def replies(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    way: Way,
    known: Sequence[Reply] = (),
) -> list[Reply]:
    """The reply to each prompt, in order; `way.threads` ask at once. Drafts come from `known`."""
    longest = max(map(len, prompts)) + REPLY_TOKENS
    engine = make_engine(
        decoder,
        context_tokens=longest + 1,
        planned_tokens=longest,
        planned_seqs=way.threads,
        chunk_tokens=way.chunk_tokens,
        max_seqs=way.threads,
        prefix_cache_n=16 if way.cached else 0,
    )
    if way.drafts:
        engine.scheduler.drafter = _HalfRight(prompts, known)
    loop = EngineLoop(engine)

    def reply(prompt: Sequence[int]) -> Reply:
        outputs = list(loop.submit(SequenceRequest(prompt, _GREEDY)))
        tokens = [output.token for output in outputs if output.token is not None]
        return [token.id for token in tokens], [token.logprob or 0.0 for token in tokens]

    try:
        with ThreadPoolExecutor(way.threads) as pool:
            found = list(pool.map(reply, prompts))
    finally:
        loop.close()
    assert bool(engine.stats.cached_tokens) == way.cached
    assert bool(engine.stats.accepted_tokens) == way.drafts
    return found


@dataclass(frozen=True)
class Difference:
    """How the replies of two ways differ: requests, and the largest of a log-probability."""

    requests: int
    logprob: float


def difference(ours: Sequence[Reply], theirs: Sequence[Reply]) -> Difference:
    """Log-probabilities count up to the first token that differs."""
    differing, largest = 0, 0.0
    for (tokens, logprobs), (other_tokens, other_logprobs) in zip(ours, theirs, strict=True):
        differing += tokens != other_tokens
        for token, a, other, b in zip(tokens, logprobs, other_tokens, other_logprobs, strict=False):
            largest = max(largest, abs(a - b))
            if token != other:
                break
    return Difference(differing, largest)
