"""Compute a made-up family on every path: `made_up_run.py FOLDER OUT WHAT TOKENS`.

A program of its own, which imports a copy of the package. It writes the logits of all ways to
compute some tokens to the file OUT, or `refused.txt` beside it with the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "distributed")]

from clusters import Workers, cluster_decoder, request_for, single_decoder
from ordered_reference import ordered_reference

from mrs.engine.profile.run import profile_run
from mrs.errors import MrsError
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.run.model_loader import ModelLoader


@torch.inference_mode()
def logits_of(decoder: Decoder, ids: list[int], step: int) -> Tensor:
    """(T, V), of so many tokens at a time."""
    cache = decoder.new_cache(200, 200)
    parts = []
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        fed = SequenceInput(cache, some, len(ids), logits_rows=range(len(some)))
        parts.append(decoder.forward(forward_batch([fed]), [cache]))
    return torch.cat(parts)


def in_one_process(folder: Path, ids: list[int]) -> Iterator[tuple[str, Tensor]]:
    for dtype, isq in (("f32", None), ("bf16", None), ("bf16", "q8_0")):
        request = request_for(folder, None, 0, dtype=dtype, isq=isq)
        decoder = single_decoder(request)
        for step in (len(ids), 7, 1):
            yield f"{isq or dtype}.{step}", logits_of(decoder, ids, step)
        plan = ModelLoader(request).plan
        used = profile_run(decoder, plan.workload.cache).activation_bytes[torch.device("cpu")]
        planned = plan.breakdowns[0].activations.expected
        assert used <= planned, f"{used} bytes, but {planned} are planned"


def in_two_processes(folder: Path, ids: list[int]) -> Iterator[tuple[str, Tensor]]:
    workers = Workers(folder, 1)
    try:
        request = request_for(folder, workers.port, 1, dtype="f32")
        with cluster_decoder(request) as (decoder, cluster):
            assert 0 < len(cluster.own_layers) < len(decoder.spec.layers)
            yield "two processes", logits_of(decoder, ids, 7)
    finally:
        workers.end()


def in_shares(folder: Path, ids: list[int]) -> Iterator[tuple[str, Tensor]]:
    decoder = ordered_reference(request_for(folder, None, 0, dtype="f32"), 2)
    yield "shares", logits_of(decoder, ids, 7)


def in_a_gguf_file(folder: Path, ids: list[int]) -> Iterator[tuple[str, Tensor]]:
    for isq in (None, "q8_0"):
        request = request_for(folder / "model.gguf", None, 0, dtype="f32", isq=isq)
        yield f"{isq or 'f32'}.gguf", logits_of(single_decoder(request), ids, 7)


WAYS = {"gguf": in_a_gguf_file, "one": in_one_process, "two": in_two_processes, "shares": in_shares}

if __name__ == "__main__":
    folder, out, ways, tokens = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    numbers = [int(each) for each in tokens.split(",")]
    try:
        made = dict(each for way in ways.split(",") for each in WAYS[way](folder, numbers))
        save_file({name: tensor.contiguous() for name, tensor in made.items()}, out)
    except MrsError as error:
        out.with_name("refused.txt").write_text(str(error))
