"""Speed of a mixture whose experts are on disk, beside what reading all chosen ones would allow.

    python tests/bench/disk_experts.py FOLDER [--limit-mib 1200] [--zipf 1.2]

The model is random; how often its experts are chosen falls by Zipf's law, in another order in each
layer. It runs in a memory control group of a third of its size where this system allows one. Right
before and after the replies, experts are read from the same files by chance, as fast as the disk
gives them: that speed is the bound of a program that reads every expert when it is chosen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

MIB = 1 << 20
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, LAYERS, VOCAB = 1024, 512, 64, 8, 16, 32000
#: Tokens before those that count, these, and those of the prompt.
WARM, COUNTED, PROMPT = 40, 80, 4
#: How much of the scores is noise, beside what the rank of an expert adds.
NOISE = 1.0


def write_model(folder: Path, zipf: float) -> None:
    """The common part of all embeddings makes some experts likelier."""
    import torch
    from safetensors.torch import save_file

    from support.byte_tokenizer import byte_tokenizer
    from support.model_files import tensor_shapes

    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * INTERMEDIATE,
        "moe_intermediate_size": INTERMEDIATE,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
    }
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(HIDDEN, generator=generator)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            values = torch.ones(shape)
        elif name.endswith("embed_tokens.weight"):
            values = values + common
        elif name.endswith("mlp.gate.weight"):
            ranks = torch.randperm(EXPERTS, generator=generator) + 1
            scores = -zipf * ranks.log()
            values = NOISE * values * HIDDEN**-0.5 * 2**0.5
            values += scores[:, None] * common * 2**0.5 / HIDDEN
        else:  # little is added to the embeddings, so that their common part stays
            values *= 0.5 * shape[-1] ** -0.5
        tensors[name] = values.bfloat16()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def raw_speed(experts: Any, seconds: float = 2.0) -> float:
    """Bytes a second of experts that are read by chance from the files of a model."""
    from mrs.devices.disk import _touched_memory
    from mrs.process.direct_file import DirectReader

    chance, reader, size = random.Random(0), DirectReader(), 0
    files = list(experts._layers.values())
    memory = _touched_memory(16 * files[0].part_bytes)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        reads = []
        for turn in range(16):
            file = chance.choice(files)
            at = turn * file.part_bytes
            expert = chance.randrange(len(file.checksums)) * file.part_bytes
            reads += reader.begin(file.file, memory[at : at + file.part_bytes], expert)
            size += file.part_bytes
        for each in reads:
            each.result()
    return size / (time.perf_counter() - began)


def run(folder: Path, isq: str | None, *, in_memory: bool) -> None:
    from mrs.request import ModelSource, RunRequest
    from mrs.run.model_loader import ModelLoader

    request = RunRequest(
        ModelSource(str(folder), "safetensors"),
        cpu=True,
        isq=isq,
        disk_layers=None if in_memory else "auto",
        prefix_cache_n=0,
        max_seq_len=512,
        speculate="off",
        calibration=False,
    )
    model = ModelLoader(request).load()
    experts = None if in_memory else found_experts()
    reads = [0] if experts is None else counted_reads(experts)
    before = 0.0 if experts is None else raw_speed(experts)
    replied(model, WARM)
    began, cpu, first = time.perf_counter(), time.process_time(), reads[0]
    replied(model, COUNTED)
    rate = COUNTED / (time.perf_counter() - began)
    cpu, read = time.process_time() - cpu, (reads[0] - first) / COUNTED
    print(f"{rate:.2f} tokens/s, {1e3 * cpu / COUNTED:.0f} ms of processors a token")
    if experts is not None:
        after, part = raw_speed(experts), experts._layers[0].part_bytes
        bound = (before * after) ** 0.5 / (LAYERS * TOP_K * part)
        print(
            f"disk {before / 1e9:.2f} and {after / 1e9:.2f} GB/s; experts of {part / MIB:.2f} MiB\n"
            f"{LAYERS * TOP_K} chosen a token, {read:.1f} read\n"
            f"bound of reading all that are chosen {bound:.2f} tokens/s: {rate / bound:.2f} times"
        )
    model.close()


def replied(model: Any, tokens: int) -> Any:
    from mrs.events import Finished
    from mrs.request import Sampling

    sampling = Sampling(temperature=1.0, max_tokens=tokens, ignore_eos=True, seed=tokens)
    for event in model.stream_completion("a" * PROMPT, sampling):
        if isinstance(event, Finished):
            return event.usage
    raise AssertionError("no end")


def found_experts() -> Any:
    import gc

    from mrs.model.disk_experts import DiskExperts

    return next((each for each in gc.get_objects() if isinstance(each, DiskExperts)), None)


def counted_reads(experts: Any) -> list[int]:
    """How many experts are read from now on, in a list that changes."""
    begin, count = experts._reader.begin, [0]

    def counted(*given: Any) -> Any:
        count[0] += 1
        return begin(*given)

    experts._reader.begin = counted
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit-mib", type=int, default=1200)
    parser.add_argument("--zipf", type=float, default=1.2)
    parser.add_argument("--isq")
    parser.add_argument("--in-memory", action="store_true")
    parser.add_argument("--child", action="store_true")
    asked = parser.parse_args()
    if asked.child:
        run(asked.folder, asked.isq, in_memory=asked.in_memory)
        return
    if not asked.folder.exists():
        write_model(asked.folder, asked.zipf)
    from memory.memory_group import kills_in, memory_group

    limit = (1 << 50) if asked.in_memory else asked.limit_mib * MIB
    with memory_group(limit) as group:

        def enter() -> None:
            if group is not None:
                group.write_text(str(os.getpid()))

        command = [sys.executable, __file__, *sys.argv[1:], "--child"]
        subprocess.run(command, preexec_fn=enter, check=False)
        print(f"{kills_in(group)} killed" if group else "without a control group")


main()
