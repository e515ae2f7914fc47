"""Measure the speed of a model: prefill, decode, and the share of the memory bandwidth used."""

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
from mrs.request import RunRequest, Sampling
from mrs.run.bench_drafts import DraftedReplies, measure_drafts
from mrs.run.model_loader import ModelLoader

if TYPE_CHECKING:
    from mrs.engine.loop import EngineLoop
    from mrs.plan.plan import Plan
    from mrs.run.loaded_model import LoadedModel

#: Seed of the random prompts. Each round has its own prompt, so that no prefix cache can help.
SEED = 20260101
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class BenchSettings:
    """What a round does, and how many rounds count after those for warming up.

    A round computes `concurrency` prompts at the same time, each of `prompt_tokens` after `depth`
    tokens that are not measured, and generates `new_tokens` after each. A rate is the sum over all
    sequences. With `drafts`, replies to texts are measured as well, with drafts and without.
    """

    prompt_tokens: int = 512
    new_tokens: int = 64
    rounds: int = 3
    warmup: int = 1
    depth: int = 0
    concurrency: int = 1
    drafts: bool = False

    @property
    def prompts_tokens(self) -> int:
        """The measured tokens of all prompts of a round."""
        return self.concurrency * self.prompt_tokens


@dataclass(frozen=True)
class Spread:
    """The results of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Report:
    """The measured speed of a model.

    Decoding a token reads `token_bytes` of weights, and `cache_bytes` of caches in the middle of
    the reply. `read_bytes_per_s` is the speed of a plain read of memory right after each round, and
    `read_share` the share of it that decoding reached. A token of a prompt takes `token_products`
    products of values with weights of the layers. `peak_products_per_s` is the speed of such
    products in registers, and `peak_share` the share of it that prompts reached. These four are
    None unless all layers are on the CPU, the last two also if torch computes prompts. `drafts` are
    replies to texts, if they were wanted.
    """

    summary: str
    kernels: str
    work: BenchSettings
    load_s: float
    peak_bytes: int
    token_bytes: int
    cache_bytes: int
    prompt_tokens_per_s: Spread
    decode_tokens_per_s: Spread
    decode_bytes_per_s: Spread
    read_bytes_per_s: Spread | None
    read_share: Spread | None
    token_products: int
    peak_products_per_s: Spread | None
    peak_share: Spread | None
    drafts: tuple[DraftedReplies, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Round:
    prompt_s: float
    decode_s: float
    decoded_tokens: int
    read_bytes_per_s: float | None
    peak_products_per_s: float | None


def bench(
    request: RunRequest,
    work: BenchSettings,
    on_progress: OnProgress | None = None,
    on_round: Callable[[int], None] = lambda number: None,
) -> Report:
    """Load the model and measure `work.rounds` rounds, after those for warming up.

    `on_round` is called at the start of each round with its number; the last one for warming up is
    0. Raises MrsError.
    """
    request = replace(
        request,
        max_batch_size=max(request.max_batch_size, work.concurrency),
        max_seqs=max(request.max_seqs, work.concurrency),
    )
    if not work.drafts:
        request = replace(request, speculate="off", draft_model=None, mtp=False)
    loader = ModelLoader(request)
    _require_context(work, loader.plan.longest_tokens)
    started = time.perf_counter()
    model = loader.load(on_progress)
    load_s = time.perf_counter() - started
    from mrs.kernels.cpu.library import path_name
    from mrs.plan.cost import decoded_weight_bytes
    from mrs.plan.memory.kv_bytes import decoded_cache_bytes
    from mrs.plan.memory.model_facts import main_format

    description, plan = loader.planner.description, model.plan
    token_bytes = decoded_weight_bytes(description.parameters, description.spec, plan.storage)
    middle = work.depth + work.prompt_tokens + work.new_tokens // 2
    cache_bytes = decoded_cache_bytes(description.spec.layers, plan.cache_format, middle)
    on_cpu = all(plan.devices[index].torch_device == "cpu" for index in plan.layer_devices)
    cpu_format = main_format(plan.storage) if on_cpu else None
    # A random prompt says nothing of how well drafts do, and steps of one token are measured.
    model.engine.use_drafts(wanted=False)
    rounds = _measure_rounds(model.engine, work, description.spec.vocab_size, cpu_format, on_round)
    drafted = measure_drafts(model, work.rounds, work.warmup) if work.drafts else []
    _remember(model, work, rounds)
    kernels = path_name() if on_cpu else _gpu_kernels(plan)
    return _report(model, work, rounds, load_s, token_bytes, cache_bytes, kernels, drafted)


def _gpu_kernels(plan: Plan) -> str:
    import torch

    from mrs.kernels.triton.attention_check import has_triton_attention

    names = {plan.devices[index].torch_device for index in plan.layer_devices}
    gpus = [torch.device(name) for name in names if name.startswith("cuda")]
    return "Triton" if any(map(has_triton_attention, gpus)) else "torch"


def _report(
    model: LoadedModel,
    work: BenchSettings,
    rounds: list[_Round],
    load_s: float,
    token_bytes: int,
    cache_bytes: int,
    kernels: str,
    drafted: list[DraftedReplies],
) -> Report:
    reads = _read_speeds(rounds)
    decode = [r.decoded_tokens / r.decode_s for r in rounds]
    # A step of several sequences reads the weights once.
    traffic = [rate * (token_bytes / work.concurrency + cache_bytes) for rate in decode]
    shares = [used / read for used, read in zip(traffic, reads, strict=False)]
    prompts = [work.prompts_tokens / r.prompt_s for r in rounds]
    token_products = sum(each.weights + each.expert_weights for each in model.plan.speed.work)
    peaks = [r.peak_products_per_s for r in rounds if r.peak_products_per_s is not None]
    peak_shares = [rate * token_products / peak for rate, peak in zip(prompts, peaks, strict=False)]
    return Report(
        summary=model.summary,
        kernels=kernels,
        work=work,
        load_s=load_s,
        peak_bytes=_peak_resident_bytes(),
        token_bytes=token_bytes,
        cache_bytes=cache_bytes,
        prompt_tokens_per_s=Spread.of(prompts),
        decode_tokens_per_s=Spread.of(decode),
        decode_bytes_per_s=Spread.of(traffic),
        read_bytes_per_s=Spread.of(reads) if reads else None,
        read_share=Spread.of(shares) if shares else None,
        token_products=token_products,
        peak_products_per_s=Spread.of(peaks) if peaks else None,
        peak_share=Spread.of(peak_shares) if peak_shares else None,
        drafts=tuple(drafted),
    )


def _read_speeds(rounds: list[_Round]) -> list[float]:
    return [r.read_bytes_per_s for r in rounds if r.read_bytes_per_s is not None]


def _remember(model: LoadedModel, work: BenchSettings, rounds: list[_Round]) -> None:
    """Close the model and store the measured speeds for later plans."""
    if reads := _read_speeds(rounds):
        remember_host_bandwidth(max(reads))
    for each in rounds:
        model.pace.add_prompt(work.prompts_tokens, each.prompt_s)
        if work.new_tokens > 1 and work.concurrency == 1:
            model.pace.add_step(each.decode_s / each.decoded_tokens)
    model.close()


def _require_context(work: BenchSettings, context_tokens: int) -> None:
    parts = [work.depth, work.prompt_tokens, work.new_tokens]
    if sum(parts) > context_tokens:
        raise UsageError(
            f"{' + '.join(str(part) for part in parts if part)} tokens are more than the "
            f"{context_tokens} that a sequence can have",
            hint="lower -p or -g" + (" or --depth" if work.depth else ""),
        )


def _measure_rounds(
    engine: EngineLoop,
    work: BenchSettings,
    vocab_size: int,
    cpu_format: str | None,
    on_round: Callable[[int], None],
) -> list[_Round]:
    """`cpu_format` is that of most weights, if all are on the CPU."""
    import torch

    from mrs.kernels.cpu.peaks import arithmetic_peak, read_bandwidth

    generator = torch.Generator().manual_seed(SEED)
    rounds = []
    shape = work.concurrency, work.depth + work.prompt_tokens
    for number in range(1 - work.warmup, work.rounds + 1):
        on_round(number)
        prompts = torch.randint(0, vocab_size, shape, generator=generator).tolist()
        if work.depth:  # the prefix cache keeps what is computed here
            for prompt in prompts:
                list(engine.generate(prompt[: work.depth], replace(GREEDY, max_tokens=1)))
        measured = _measure_round(engine, prompts, work.new_tokens)
        read = None if cpu_format is None else read_bandwidth()
        peak = None if cpu_format is None else arithmetic_peak(cpu_format)
        rounds.append(_Round(*measured, read, peak))
    return rounds[work.warmup :]


def _measure_round(
    engine: EngineLoop, prompts: Sequence[list[int]], new_tokens: int
) -> tuple[float, float, int]:
    """Seconds until each prompt has its first token, and of the tokens after that; their number.

    These are times at which steps ended: this thread may read tokens late.
    """
    from mrs.engine.sequence import SequenceRequest

    # Exactly `new_tokens`: a further token would be computed while the next round is measured.
    sampling = replace(GREEDY, max_tokens=new_tokens)
    start_s = time.perf_counter()
    replies = [engine.submit(SequenceRequest(ids, sampling)) for ids in prompts]
    times_s = [[output.time_s for output in reply] for reply in replies]
    first_s = max(each[0] for each in times_s)
    end_s = max(each[-1] for each in times_s)
    later = sum(time_s > first_s for each in times_s for time_s in each)
    return first_s - start_s, end_s - first_s, later


def _peak_resident_bytes() -> int:
    """The peak resident memory of this process; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
