"""Time a model: prompts, decoding, and how near decoding comes to the speed of memory."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mrs.devices.bandwidth import remember_host_bandwidth
from mrs.errors import UsageError
from mrs.events import OnProgress
from mrs.model_loader import ModelLoader
from mrs.request import RunRequest, Sampling

if TYPE_CHECKING:
    from mrs.engine.loop import EngineLoop
    from mrs.loaded_model import LoadedModel

#: Ids of prompts are drawn from this seed; each round has its own, so that no cache can help.
SEED = 20260101
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0)


@dataclass(frozen=True)
class Work:
    """What one round does: a prompt of so many tokens, then so many more, one at a time."""

    prompt_tokens: int = 512
    new_tokens: int = 64
    rounds: int = 3


@dataclass(frozen=True)
class Spread:
    """What several rounds gave."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Report:
    """A model's rates over all rounds.

    A decoded token reads `token_bytes` of weights. `read_share` is the part of the memory's
    bandwidth that decoding used, each round held against a plain read of memory right after it;
    both are None where not everything runs on the CPU.
    """

    summary: str
    kernels: str
    work: Work
    load_s: float
    peak_bytes: int
    token_bytes: int
    prompt_tokens_per_s: Spread
    decode_tokens_per_s: Spread
    decode_bytes_per_s: Spread
    read_bytes_per_s: Spread | None
    read_share: Spread | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Round:
    prompt_s: float
    decode_s: float
    read_bytes_per_s: float | None


def bench(
    request: RunRequest,
    work: Work,
    on_progress: OnProgress | None = None,
    on_round: Callable[[int], None] = lambda number: None,
) -> Report:
    """Load the model and run `work.rounds` counted rounds after one that warms up.

    `on_round` is told each round's number, 0 for the warm-up. Raises MrsError.
    """
    loader = ModelLoader(request)
    _require_room(work, loader.plan.longest_tokens)
    started = time.perf_counter()
    model = loader.load(on_progress)
    load_s = time.perf_counter() - started
    from mrs.kernels.cpu.library import path_name
    from mrs.plan.cost import decoded_weight_bytes

    description, made = loader.planner.description, model.plan
    token_bytes = decoded_weight_bytes(description.parameters, description.spec, made.storage)
    on_cpu = all(made.devices[index].torch_device == "cpu" for index in made.layer_devices)
    rounds = _time(model.engine, work, description.spec.vocab_size, on_cpu, on_round)
    reads = [r.read_bytes_per_s for r in rounds if r.read_bytes_per_s is not None]
    _remember(model, work, rounds, reads)
    decode = [(work.new_tokens - 1) / r.decode_s for r in rounds]
    traffic = [rate * token_bytes for rate in decode]
    shares = [moved / read for moved, read in zip(traffic, reads, strict=False)]
    return Report(
        summary=model.summary,
        kernels=path_name() if on_cpu else "torch",
        work=work,
        load_s=load_s,
        peak_bytes=_peak_resident_bytes(),
        token_bytes=token_bytes,
        prompt_tokens_per_s=Spread.of([work.prompt_tokens / r.prompt_s for r in rounds]),
        decode_tokens_per_s=Spread.of(decode),
        decode_bytes_per_s=Spread.of(traffic),
        read_bytes_per_s=Spread.of(reads) if reads else None,
        read_share=Spread.of(shares) if shares else None,
    )


def _remember(model: LoadedModel, work: Work, rounds: list[_Round], reads: list[float]) -> None:
    """Later plans know how fast the machine was."""
    if reads:
        remember_host_bandwidth(max(reads))
    for each in rounds:
        model.pace.add_prompt(work.prompt_tokens, each.prompt_s)
        if work.new_tokens > 1:
            model.pace.add_step(each.decode_s / (work.new_tokens - 1))
    model.close()


def _require_room(work: Work, context_tokens: int) -> None:
    if work.prompt_tokens + work.new_tokens > context_tokens:
        raise UsageError(
            f"{work.prompt_tokens} + {work.new_tokens} tokens are more than the "
            f"{context_tokens} that a sequence can have",
            hint="lower -p or -n",
        )


def _time(
    engine: EngineLoop, work: Work, vocab_size: int, on_cpu: bool, on_round: Callable[[int], None]
) -> list[_Round]:
    import torch

    from mrs.kernels.cpu.read_bandwidth import read_bandwidth

    chooser = torch.Generator().manual_seed(SEED)
    rounds = []
    for number in range(work.rounds + 1):
        on_round(number)
        ids = torch.randint(0, vocab_size, (work.prompt_tokens,), generator=chooser).tolist()
        prompt_s, decode_s = _run(engine, ids, work.new_tokens)
        read = read_bandwidth() if on_cpu else None
        rounds.append(_Round(prompt_s, decode_s, read))
    return rounds[1:]


def _run(engine: EngineLoop, ids: list[int], new_tokens: int) -> tuple[float, float]:
    """Seconds to the first token, and from there to the last."""
    # Not one token more: what follows is timed, too.
    tokens = engine.generate(ids, replace(GREEDY, max_tokens=new_tokens))
    start = time.perf_counter()
    next(tokens)
    first = time.perf_counter()
    for _ in range(new_tokens - 1):
        next(tokens)
    return first - start, time.perf_counter() - first


def _peak_resident_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
