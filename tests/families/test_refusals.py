"""What cannot be run is refused by name from the headers alone, with the right exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import write_gguf
from parity_cases import CASES, REPRESENTATIVES, Case
from safetensors.torch import load_file, save_file
from saved_models import SavedModel, save_model

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.errors import ExitCode, MrsError
from mrs.layers.rope.module import frequencies
from mrs.request import ModelSource
from mrs.source.checkpoint import Checkpoint
from mrs.source.find import open_checkpoint
from mrs.source.weights import Weights
from support.references import computed_once
from support.suites import suite_of

DEFAULTS = {case.family: case for case in CASES if case.name == "default"}
Edit = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


@pytest.fixture(autouse=True)
def _no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("a weight was read")

    monkeypatch.setattr(Weights, "read_into", fail)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], SavedModel]:
    """The files of a case, written once: no test needs what transformers computes."""
    return computed_once(save_model, tmp_path_factory)


@pytest.fixture
def describe_edited(saved, tmp_path: Path) -> Callable[..., Description]:
    """Describe a family's default model after an edit of its config and tensors."""

    def run(family: str, edit: Edit, arch: str | None = None) -> Description:
        source = saved(DEFAULTS[family]).folder
        config = json.loads((source / "config.json").read_text())
        tensors = load_file(source / "model.safetensors")
        edit(config, tensors)
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors")
        return describe(open_checkpoint(ModelSource(str(tmp_path), "safetensors")), arch)

    return run


def config(**values: Any) -> Edit:
    return lambda config, tensors: config.update(values)


def without(key: str) -> Edit:
    def edit(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        (config if key in config else tensors).pop(key)

    return edit


def tensor(name: str, *shape: int) -> Edit:
    return lambda config, tensors: tensors.update({name: torch.zeros(shape)})


ROPE = {"rope_type": "default", "rope_theta": 1e4}
NORM = "model.layers.1.input_layernorm.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts.3.w2.weight"


@pytest.mark.parametrize(
    ("family", "edit", "code", "named"),
    [
        ("llama", config(model_type="llamaverse"), 5, "llamaverse"),
        ("llama", config(rope_parameters={**ROPE, "rope_type": "spiral"}), 5, "spiral"),
        ("llama", config(quantization_config={"quant_method": "quip"}), 5, "quip"),
        ("llama", config(hidden_act="sine"), 5, "sine"),
        (
            "qwen2",
            config(layer_types=["full_attention", "wave"], use_sliding_window=True),
            5,
            "wave",
        ),
        ("gemma", config(use_bidirectional_attention=True), 5, "use_bidirectional_attention"),
        ("gemma2", config(use_bidirectional_attention=True), 5, "use_bidirectional_attention"),
        ("llama", tensor("model.layers.0.self_attn.extra.weight", 4), 5, "self_attn.extra.weight"),
        ("llama", without("model_type"), 3, "model_type"),
        ("llama", without("hidden_size"), 3, "hidden_size"),
        ("llama", without(NORM), 3, NORM),
        ("phi3", without("model.layers.1.self_attn.qkv_proj.weight"), 3, "qkv_proj.weight"),
        ("phi", without("lm_head.bias"), 3, "lm_head.bias"),
        ("llama", tensor(QUERY, 64, 65), 3, QUERY),
        ("llama", tensor(QUERY, 65, 64), 3, QUERY),
        ("llama", tensor(QUERY, 64), 3, QUERY),
        ("llama", tensor(QUERY), 3, QUERY),
        ("llama", tensor(NORM), 3, NORM),
        ("llama", config(num_hidden_layers="two"), 3, "num_hidden_layers = 'two'"),
        ("llama", config(num_hidden_layers=10**9), 3, "num_hidden_layers"),
        ("llama", config(num_key_value_heads=3), 3, "num_key_value_heads = 3"),
        ("llama", config(rope_parameters={**ROPE, "rope_type": "yarn"}), 3, "factor"),
        ("phi3", config(rope_parameters={**ROPE, "rope_type": "longrope"}), 3, "rope_factors"),
        ("glm4", config(rope_parameters={**ROPE, "partial_rotary_factor": 2.0}), 3, "rope"),
        ("mixtral", without(EXPERT), 3, EXPERT),
        ("mixtral", config(num_local_experts=10**7), 3, "10000000"),
        ("qwen3_moe", config(num_experts_per_tok=99), 3, "num_experts_per_tok = 99"),
        ("qwen2_moe", config(num_experts=5), 3, "mlp.gate.weight"),
        ("deepseek_v3", config(n_group=3), 3, "n_group = 3"),
        ("deepseek_v3", config(scoring_func="tanh"), 5, "scoring_func = 'tanh'"),
        ("deepseek_v2", config(topk_method="greediest"), 5, "greediest"),
        ("deepseek_v3", config(kv_lora_rank=31), 3, "kv_a"),
        ("gpt_oss", config(swiglu_alpha=2.0), 5, "swiglu_alpha"),
        ("gpt_bigcode", config(add_cross_attention=True), 5, "add_cross_attention"),
        ("falcon", config(num_ln_in_parallel_attn=2), 5, "num_ln_in_parallel_attn = 2"),
        ("bloom", config(apply_residual_connection_post_layernorm=True), 5, "post_layernorm"),
        ("mpt", config(attn_config={"prefix_lm": True}), 5, "prefix_lm"),
        ("mpt", config(attn_config={"rope": True}), 5, "rope"),
        ("mpt", config(norm_type="low_precision_rmsnorm"), 5, "norm_type"),
        ("granite_swa", config(layer_rope_theta=[1e4] * 4), 3, "layer_rope_theta"),
        ("granite_swa", config(layer_rope_theta=[1e4, 0.5, 0, 0, 0]), 3, "layer_rope_theta"),
        ("lfm2", config(layer_types=["conv", "mamba", "conv"]), 5, "mamba"),
        ("qwen3_next", config(linear_num_value_heads=3), 3, "linear_num_value_heads = 3"),
    ],
)  # fmt: skip
def test_refused_by_name(describe_edited, family: str, edit: Edit, code: int, named: str) -> None:
    with pytest.raises(MrsError) as caught:
        describe_edited(family, edit)
    assert caught.value.exit_code == ExitCode(code)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_names_those_that_are_spelled_alike(describe_edited) -> None:
    with pytest.raises(MrsError) as caught:
        describe_edited("llama", lambda config, tensors: None, arch="qwen3-mo")
    assert caught.value.exit_code is ExitCode.UNSUPPORTED
    assert "qwen3_moe" in str(caught.value)
    assert "olmo2" not in str(caught.value)


def test_arch_forces_a_family(describe_edited) -> None:
    as_mistral = describe_edited("llama", lambda config, tensors: None, arch="Mistral")
    assert as_mistral.spec.family == "mistral"


#: The families of which one stands for each kind of layer.
KINDS = {each.partition("-")[0] for each in REPRESENTATIVES}
FEW_ODD_VALUES = (None, -1, 10**400, "x", [1])
ODD_VALUES = (*FEW_ODD_VALUES, True, 0, 1, 3, 0.5, float("nan"), float("inf"), [], {})


@pytest.mark.few("llama-few", "lfm2-few", "mixtral-few", "mamba-few", "qwen3_next-few")
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(FEW_ODD_VALUES, id="few"),
        pytest.param(ODD_VALUES, id="all", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=family, marks=suite_of(family, KINDS))
        for family, case in DEFAULTS.items()
    ],
)
def test_odd_config_values_never_crash(saved, case: Case, values: tuple[Any, ...]) -> None:
    """Each key in turn gets values that no sane config has."""
    checkpoint = open_checkpoint(ModelSource(str(saved(case).folder), "safetensors"))
    original = dict(checkpoint.config)
    check_never_crashes(
        checkpoint, ({**original, key: value} for key in original for value in values)
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn", "longrope"])
def test_odd_rope_values_never_crash(saved, kind: str) -> None:
    folder = saved(DEFAULTS["llama"]).folder
    checkpoint = open_checkpoint(ModelSource(str(folder), "safetensors"))
    rope: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    keys = (*rope, "partial_rotary_factor", "beta_fast", "beta_slow", "attention_factor", "mscale")
    check_never_crashes(
        checkpoint,
        (
            {**checkpoint.config, "rope_parameters": {**rope, key: value}}
            for key in keys
            for value in ODD_VALUES
        ),
    )


@pytest.fixture(scope="module")
def gguf_checkpoint(saved, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(saved(DEFAULTS["granite"]), path)
    return open_checkpoint(ModelSource(str(path), "gguf"))


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"general.architecture": "whale"}, 5, "whale"),
        ({"general.architecture": None}, 3, "general.architecture"),
        ({"granite.rope.scaling.type": "spiral"}, 5, "spiral"),
        ({"granite.block_count": None}, 3, "num_hidden_layers"),
        ({"granite.block_count": 3}, 3, "blk.2."),
        ({"granite.attention.head_count_kv": [2, 2, 2]}, 3, "num_key_value_heads"),
    ],
)
def test_gguf_refused_by_name(
    gguf_checkpoint: Checkpoint, changes: dict[str, Any], code: int, named: str
) -> None:
    edited = {**gguf_checkpoint.config, **changes}
    metadata = {key: value for key, value in edited.items() if value is not None}
    with pytest.raises(MrsError, match=named) as caught:
        describe(replace(gguf_checkpoint, config=metadata))
    assert caught.value.exit_code == ExitCode(code)


def test_odd_gguf_values_never_crash(gguf_checkpoint: Checkpoint) -> None:
    metadata = dict(gguf_checkpoint.config)
    check_never_crashes(
        gguf_checkpoint, ({**metadata, key: value} for key in metadata for value in ODD_VALUES)
    )


def check_never_crashes(checkpoint: Checkpoint, configs: Iterable[dict[str, Any]]) -> None:
    """Each is described, and its angles computed, or refused by an error for people."""
    outcomes = {True: 0, False: 0}
    for edited in configs:
        outcomes[_is_described(replace(checkpoint, config=edited))] += 1
    assert min(outcomes.values()) > 10


def _is_described(checkpoint: Checkpoint) -> bool:
    try:
        described = describe(checkpoint)
    except MrsError:
        return False
    for layer in described.spec.layers:
        if layer.mixer.rope is not None:
            frequencies(layer.mixer.rope, 64, {})
    return True


def test_a_model_is_described_without_torch(saved) -> None:
    """Planning must not wait for torch; a subprocess sees what is imported."""
    folder = saved(DEFAULTS["llama"]).folder
    script = (
        "import sys; from mrs.source.find import open_checkpoint; from mrs.request import"
        " ModelSource; from mrs.architecture.describe import describe;"
        f"describe(open_checkpoint(ModelSource({str(folder)!r}, 'safetensors')));"
        "print('torch' in sys.modules)"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert made.stdout.strip() == "False"
