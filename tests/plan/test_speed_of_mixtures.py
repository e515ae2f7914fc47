"""Small mixtures run about as fast as planned: experts cost their calls, not only their bytes."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mrs.engine.engine import Engine
from mrs.plan.plan import Plan
from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from support.engines import Asked, make_engine
from support.model_files import write_model

GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0)
BASE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "head_dim": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
}
LATENT = {
    "n_routed_experts": 16,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
MIXTURES = [
    {"model_type": "qwen3_moe", "num_experts": 32},
    {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    {"model_type": "deepseek_v2", **LATENT},
]
#: The machine may be busy, and its clock another than it says.
WITHIN = 4


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("config", MIXTURES, ids=lambda config: config["model_type"])
def test_a_small_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config) -> None:
    """In processor time of one thread, the least of several tries."""
    monkeypatch.setattr("mrs.devices.processor.cpu_threads", lambda: 1)
    folder = write_model(tmp_path / "model", {**BASE, **config}, "BF16")
    request = RunRequest(ModelSource(str(folder), "safetensors"), max_seq_len=512, cpu=True)
    loader = ModelLoader(request)
    made = loader.plan
    decoder = loader.load_decoder(lambda progress: None)[0]
    engine = make_engine(decoder, planned_tokens=512, context_tokens=512)
    prompt_s, step_s = zip(*(times(engine, first) for first in range(4)), strict=True)
    hold(made, 128 / min(prompt_s), 1 / min(step_s))


def hold(made: Plan, prompt: float, decode: float) -> None:
    for measured, (low, high) in ((prompt, made.speed.prompt_of(128)), (decode, made.speed.decode)):
        assert low / WITHIN < measured < high * WITHIN


def times(engine: Engine, first: int) -> tuple[float, float]:
    """Of a prompt of 128 tokens, and of the fastest of the next tokens, in seconds."""
    asked = Asked.of(engine, list(range(first, first + 128)), GREEDY)
    marks = [time.process_time()]
    for _ in range(12):
        asked.advance()
        marks.append(time.process_time())
    asked.finish()
    steps = [after - before for before, after in pairwise(marks[1:])]
    return marks[1] - marks[0], min(steps)
