"""Greedy conversations with the published model, and what its exact weights say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from mrs.engine.sequence import SequenceRequest
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel

#: No penalties, so that greedy tokens are the most likely ones.
OFF: dict[str, Any] = {"frequency_penalty": 0.0, "presence_penalty": 0.0}


def request_for(path: Path, **settings: Any) -> RunRequest:
    source = ModelSource(str(path.parent), "gguf", (path.name,))
    return RunRequest(source, calibration=False, max_seq_len=512, **settings)


class Replies(NamedTuple):
    """What a model said to a conversation of two messages: token ids of prompts and replies."""

    prompts: list[list[int]]
    replies: list[list[int]]
    cached_tokens: list[int]


def converse(model: LoadedModel, max_tokens: int = 24) -> Replies:
    """A greedy conversation whose second prompt begins with the first one and its reply."""
    sampling = Sampling(temperature=0, max_tokens=max_tokens, **OFF)
    ids = model.tokenizer.encode(
        "<|im_start|>user\nWrite the names of the first six planets, in order."
        "<|im_end|>\n<|im_start|>assistant\n",
        allow_special=True,
    )
    prompts, replies, cached = [], [], []
    for question in ("", "<|im_end|>\n<|im_start|>user\nWhich is the largest?<|im_end|>\n"):
        if question:
            asked = model.tokenizer.encode(f"{question}<|im_start|>assistant\n", allow_special=True)
            ids = [*prompts[-1], *replies[-1], *asked]
        stream = model.engine.submit(SequenceRequest(ids, sampling))
        prompts.append(ids)
        replies.append([output.token.id for output in stream if output.token is not None])
        cached.append(stream.sequence.num_cached_tokens)
    return Replies(prompts, replies, cached)


@torch.inference_mode()
def check_replies(said: Replies, reference: Any) -> None:
    """Where the exact model is sure of a token by 1 nat, it is the one that was said."""
    sure = 0
    for prompt, reply in zip(said.prompts, said.replies, strict=True):
        logits = reference(torch.tensor([[*prompt, *reply[:-1]]])).logits[0, len(prompt) - 1 :]
        best = logits.topk(2).values
        for token, row, (first, second) in zip(reply, logits, best.tolist(), strict=True):
            if first - second > 1:
                assert token == int(row.argmax())
                sure += 1
    assert sure > 10
