"""A prompt of 2,048 tokens over two stages, in chunks and at once, with a link that takes 4 ms.

    python tests/outside/prompt_chunks.py

Chunks follow each other through the stages, so that both compute at the same time: that has to
take at most 70 % of the time of one after the other. Each process has one thread.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in (".", "distributed", "outside")]

import torch
from clusters import Workers, cluster_decoder, free_port, request_for
from rank_memory import SIZES as RANK_SIZES
from slow_link import Relay

from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from support.model_files import SMALL, write_model

TOKENS, CHUNK_TOKENS, DELAY_S = 2048, 512, 0.004
MOST_PART, TRIES = 0.7, 3
SIZES = {**RANK_SIZES, "max_position_embeddings": 4096}


def prompt_s(decoder: Decoder, chunk_tokens: int) -> float:
    """Seconds until the logits of the prompt's last token are there."""
    cache = decoder.new_cache(TOKENS + 1, chunk_tokens)
    since_s = time.perf_counter()
    for start in range(0, TOKENS, chunk_tokens):
        is_last = start + chunk_tokens == TOKENS
        rows = range(chunk_tokens - 1, chunk_tokens) if is_last else range(0)
        given = SequenceInput(cache, [0] * chunk_tokens, logits_rows=rows)
        decoder.forward(forward_batch([given]), [cache])
    return time.perf_counter() - since_s


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        model = write_model(Path(name) / "model", {**SMALL, **SIZES}, "BF16", std=0.05)
        port = free_port()
        workers = Workers(Path(name), 1, Relay(port, DELAY_S).port)
        try:
            request = replace(request_for(model, port, 1), max_seq_len=TOKENS)
            with cluster_decoder(request) as (decoder, cluster), torch.inference_mode():
                print(cluster.summary, flush=True)
                prompt_s(decoder, CHUNK_TOKENS)  # the first one starts threads
                whole_s = min(prompt_s(decoder, TOKENS) for _ in range(TRIES))
                chunks_s = min(prompt_s(decoder, CHUNK_TOKENS) for _ in range(TRIES))
        finally:
            workers.end()
    part = chunks_s / whole_s
    print(f"at once {whole_s:.2f} s, in chunks {chunks_s:.2f} s: {100 * part:.0f} %")
    return 0 if part <= MOST_PART else 1


if __name__ == "__main__":
    sys.exit(main())
