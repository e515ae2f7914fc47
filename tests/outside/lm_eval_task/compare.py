"""Prints the harness's figures for a GGUF file: of transformers, of a server, and of Python.

`lm_evaluation.py` runs this where the harness is installed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from transformers import AutoTokenizer

from mrs import CompletionRequest, Runner, Which

TASK = Path(__file__).with_name("endings.yaml")
#: The most that log-likelihoods of endings may differ on average, in nats: a file of 4 bits is
#: multiplied with activations of 8 bits, and transformers computes in float32.
MOST_NATS = 0.5


class PythonAPI(TemplateLM):  # type: ignore[misc]
    """The harness's view of a `Runner`: it asks for the log-likelihoods of token ids."""

    def __init__(self, runner: Runner, tokenizer: Any) -> None:
        super().__init__()
        self._runner = runner
        self._tokenizer = tokenizer

    @property
    def eot_token_id(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def tok_encode(self, string: str, **_: object) -> list[int]:
        return list(self._tokenizer.encode(string, add_special_tokens=False))

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], **_: object
    ) -> list[tuple[float, bool]]:
        with ThreadPoolExecutor(8) as pool:  # the engine computes them in one batch
            return list(pool.map(lambda each: self._score(each[1], each[2]), requests))

    def _score(self, context: list[int], ending: list[int]) -> tuple[float, bool]:
        """Its logarithm of probability, and whether it is what greedy decoding would write."""
        request = CompletionRequest([*context, *ending], max_tokens=0, prompt_logprobs=1)
        (choice,) = self._runner.send_completion_request(request).choices
        tokens = choice.prompt_logprobs[-len(ending) :]
        is_greedy = all(each.logprob == each.top_logprobs[0].logprob for each in tokens)
        return sum(each.logprob for each in tokens), is_greedy

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        raise NotImplementedError


def evaluated(model: Any, limit: int | None) -> tuple[dict[str, float], list[float]]:
    """The figures of the task, and the log-likelihood of each ending."""
    task = yaml.safe_load(TASK.read_text())
    items = {"validation": str(TASK.with_name("items.jsonl"))}
    task["dataset_kwargs"]["data_files"] = items
    found = simple_evaluate(
        model=model, tasks=[task], limit=limit, bootstrap_iters=0, log_samples=True
    )
    (name,) = found["results"]
    samples = sorted(found["samples"][name], key=lambda each: each["doc_id"])
    scores = [float(score) for each in samples for score, _ in each["filtered_resps"]]
    return found["results"][name], scores


def main(file: Path, address: str, limit: int | None) -> int:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        server = LocalCompletionsAPI(
            base_url=f"{address}/v1/completions",
            model="default",
            tokenizer=folder,
            tokenizer_backend="huggingface",
            batch_size=8,
        )
        rows = {"server": timed(server, limit)}
    with Runner(Which.GGUF(str(file.parent), file.name), cpu=True) as runner:
        rows["Python"] = timed(PythonAPI(runner, tokenizer), limit)
    exact = HFLM(str(file.parent), gguf_file=file.name, dtype="float32", device="cpu", batch_size=8)
    reference = timed(exact, limit)
    return report(file.name, reference, rows)


def timed(model: Any, limit: int | None) -> tuple[dict[str, float], list[float], float]:
    start_s = time.monotonic()
    figures, scores = evaluated(model, limit)
    return figures, scores, time.monotonic() - start_s


def report(name: str, reference: Any, rows: Any) -> int:
    figures, wanted, seconds = reference
    errors = [figures[f"{each},none"] for each in ("acc", "acc_norm")]
    sentences = len(wanted) // 4
    spread = [(each * (1 - each) / sentences) ** 0.5 for each in errors]
    print(f"\n{name}: {sentences} sentences, {len(wanted)} endings\n")
    print("| computed by | acc | acc_norm | mean nats apart | most nats apart | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(f"| transformers | {errors[0]:.2f} | {errors[1]:.2f} | | | {seconds:.0f} |")
    is_right = True
    for label, (own, scores, own_s) in rows.items():
        accuracies = [own[f"{each},none"] for each in ("acc", "acc_norm")]
        apart = [abs(a - b) for a, b in zip(scores, wanted, strict=True)]
        mean = sum(apart) / len(apart)
        print(
            f"| {label} | {accuracies[0]:.2f} | {accuracies[1]:.2f} | {mean:.4f} "
            f"| {max(apart):.4f} | {own_s:.0f} |"
        )
        near = zip(accuracies, errors, spread, strict=True)
        is_right &= mean <= MOST_NATS and all(abs(a - b) <= error for a, b, error in near)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) or None))
