"""How long the first token takes with and without a remembered history, and how batches pay.

The history is in the model's memory, or in files that a process before has left.

python tests/bench/prefix_cache.py MODEL [HISTORY_TOKENS]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time

from mrs.engine.prompt import Prompt
from mrs.engine.reply import Reply
from mrs.events import Finished
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

NEW_TOKENS = 20


def first_token(model: LoadedModel, ids: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens of the prompt were remembered."""
    *_, end = Reply(model.engine, model._text, Prompt(ids), Sampling(temperature=0, max_tokens=1))
    assert isinstance(end, Finished)
    return end.usage.prompt_s, end.usage.cached_tokens


def batch_rate(model: LoadedModel, prompts: list[list[int]], tokens: int) -> float:
    """Tokens a second of replies that are made together, once their prompts are in."""
    never_stop = tuple((token, -1e9) for token in model._text.stop_ids)
    settings = Sampling(temperature=0, max_tokens=tokens, logit_bias=never_stop)
    replies = [Reply(model.engine, model._text, Prompt(prompt), settings) for prompt in prompts]
    for reply in replies:
        next(reply)
    start = time.perf_counter()
    for reply in replies:
        list(reply)
    return len(prompts) * tokens / (time.perf_counter() - start)


def load_with(source: ModelSource, folder: str | None) -> LoadedModel:
    return ModelLoader(RunRequest(source, seed=1, max_batch_size=8, prefix_cache_dir=folder)).load()


def main() -> None:
    source = ModelSource(sys.argv[1], "gguf" if sys.argv[1].endswith(".gguf") else "safetensors")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    chance = random.Random(0)

    def text(tokens: int) -> list[int]:
        return [chance.randint(5, 999) for _ in range(tokens)]

    history = text(count)
    model = load_with(source, None)
    cold, _ = first_token(model, history + text(NEW_TOKENS))
    print(f"cold: {cold:.3f} s for {count + NEW_TOKENS} tokens")

    def show(name: str) -> None:
        warm, cached = first_token(model, history + text(NEW_TOKENS))
        print(f"goes on from {name}: {warm:.3f} s, {cached} cached, {cold / warm:.1f} x")

    for name, ids in (("the end of it", history), ("the middle of it", [*history, 7])):
        first_token(model, ids)
        show(name)
    for size in (1, 2, 4, 8):
        prompts = [text(16) for _ in range(size)]
        print(f"{size} at once: {batch_rate(model, prompts, 32):.1f} tokens/s")
    with tempfile.TemporaryDirectory() as folder:
        model.close()
        model = load_with(source, folder)
        first_token(model, history)
        model.close()
        model = load_with(source, folder)
        first_token(model, text(64))  # what a first prompt alone waits for
        show("files")
        model.close()


if __name__ == "__main__":
    main()
