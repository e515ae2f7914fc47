"""What following a grammar costs for each token, by vocabulary, as a share of a step.

    python tests/bench/grammar.py [--tokens-per-s 44.6]

Milliseconds for the mask, the token's addition and the search for forced tokens. A step takes the
time of one token at the given rate, by default that of a model of 1.1 billion parameters on two
cores (man/measured.md). The last row is the demo model itself, with its own steps.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from mrs.grammar.compiler import GrammarCompiler
from mrs.grammar.mask import GrammarMask
from mrs.request import Grammar, ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from mrs.text.tokenizer import Tokenizer

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "size": {"type": "number"},
            "kind": {"enum": ["small", "large", "other"]},
        },
        "required": ["name", "tags", "size", "kind"],
        "additionalProperties": False,
    }
)
GRAMMARS = {
    "JSON schema": Grammar("json_schema", SCHEMA),
    "any JSON": Grammar("json_object"),
    "words": Grammar("regex", "([A-Z][a-z]+( [a-z]+)*[.!?] )*"),
}


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Bytes, and made-up words of one to twelve letters, a third of them after a space."""
    numbers = random.Random(0)
    tokens = dict.fromkeys(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])
    while len(tokens) < vocab_size:
        length = min(12, 1 + int(numbers.expovariate(0.3)))
        word = "".join(numbers.choices("etaoinshrdlucmfwypvbgkjqxz0123456789\":,{}[].'-", k=length))
        tokens["\u0120" + word if numbers.random() < 0.33 else word] = None
    backend = Backend(models.BPE({text: n for n, text in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, special_tokens={"eos_token": "<end>"})


def times_s(compiler: GrammarCompiler, grammar: Grammar, vocab_size: int) -> list[float]:
    """The time of each of 300 tokens, drawn from those that are allowed."""
    mask, numbers, found = compiler.mask(grammar), random.Random(0), []
    logits = np.zeros(vocab_size, np.float32)
    for _ in range(300):
        row = logits.copy()
        start_s = time.perf_counter()
        mask(row)
        masked_s = time.perf_counter()
        token = int(numbers.choice(np.flatnonzero(np.isfinite(row))))
        chosen_s = time.perf_counter()
        mask.append(token)
        for forced in mask.forced_tokens():
            mask.append(forced)
        found.append(time.perf_counter() - chosen_s + masked_s - start_s)
        if mask.is_complete:
            mask = compiler.mask(grammar)
    return found


def share_of_demo_steps() -> float:
    """The share of a whole reply's time that its grammar takes, in the demo model."""
    model = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    spent = [0.0]

    def timed(name: str) -> None:
        method = getattr(GrammarMask, name)

        def call(*given: object) -> object:
            start_s = time.perf_counter()
            try:
                return method(*given)
            finally:
                spent[0] += time.perf_counter() - start_s

        setattr(GrammarMask, name, call)

    for name in ("__call__", "append", "forced_tokens"):
        timed(name)
    sampling = Sampling(temperature=1.0, max_tokens=400, seed=2, grammar=GRAMMARS["any JSON"])
    list(model.stream_completion("A list:", sampling))
    spent[0], start_s = 0.0, time.perf_counter()
    list(model.stream_completion("A list:", sampling))
    share = spent[0] / (time.perf_counter() - start_s)
    model.close()
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens-per-s", type=float, default=44.6)
    step_s = 1 / parser.parse_args().tokens_per_s
    for vocab_size in (32_000, 128_256, 151_936):
        tokenizer = made_up_tokenizer(vocab_size)
        compiler = GrammarCompiler(tokenizer, vocab_size, tokenizer.end_ids)
        start_s = time.perf_counter()
        compiler.mask(GRAMMARS["words"])
        print(f"{vocab_size} tokens: vocabulary read in {time.perf_counter() - start_s:.2f} s")
        for name, grammar in GRAMMARS.items():
            found = times_s(compiler, grammar, vocab_size)
            mean_s = sum(found) / len(found)
            print(
                f"  {name:12} mean {1e3 * mean_s:.3f} ms, most {1e3 * max(found):.3f} ms, "
                f"{mean_s / step_s:.1%} of a step"
            )
    print(f"demo model: {share_of_demo_steps():.1%} of the time of a reply")


if __name__ == "__main__":
    main()
