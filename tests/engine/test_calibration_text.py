"""`--calibration-file` and `--imatrix`: what each column of a matrix gets, and what it changes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mrs.engine.calibration_text import SEQUENCE_TOKENS, Observation
from mrs.engine.column_importance import _TOKENS, column_importance
from mrs.errors import MrsError
from mrs.formats import FORMATS
from mrs.quantization.gguf import decode, encode
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2}
TEXT = "The quick brown fox jumps over the lazy dog. " * 3


@pytest.fixture(scope="module", params=["llama", "mixtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A random model by transformers, and its folder with a tokenizer of one token a byte."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    sizes = SIZES | (MIXTURE if request.param == "mixtral" else {})
    config = transformers.AutoConfig.for_model(request.param, **sizes)
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, weight in made.named_parameters():
        if "norm" in name:  # inputs of matrices get columns that count more
            weight.data *= torch.exp(torch.randn_like(weight))
    folder = tmp_path_factory.mktemp(request.param)
    made.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text").write_text(TEXT)
    return folder, made, tokenizer.encode(TEXT).ids


def asked(folder: Path, **changes: Any) -> RunRequest:
    source = ModelSource(str(folder), "safetensors")
    return RunRequest(source, cpu=True, calibration=False, **changes)


def importance(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    loader = ModelLoader(asked(folder, isq="q2k", **changes))
    return column_importance(loader, lambda progress: None)


@pytest.mark.few(1)
def test_a_calibration_measures_the_inputs_of_all_matrices(model) -> None:
    folder, reference, ids = model
    squares: dict[str, torch.Tensor] = {}

    def watch(name: str):
        def hook(module, given) -> None:
            squares[name] = given[0].double().square().reshape(-1, given[0].shape[-1]).sum(0)

        return hook

    for name, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(watch(name))
    with torch.no_grad():
        reference(torch.tensor([ids]))
    found = importance(folder, calibration_file=str(folder / "text"))
    names = {
        "layers.1.mixer.q.weight": "model.layers.1.self_attn.q_proj",
        "layers.1.mixer.o.weight": "model.layers.1.self_attn.o_proj",
        "layers.0.ffn.gate.weight": "model.layers.0.mlp.gate_proj",
        "layers.1.ffn.down.weight": "model.layers.1.mlp.down_proj",
        "head.weight": "lm_head",
    }
    for ours, theirs in names.items():
        if theirs in squares:
            expected = squares[theirs] / squares[theirs].mean()
            torch.testing.assert_close(found[ours].double(), expected, rtol=1e-3, atol=1e-4)
    assert "head.weight" in found
    assert len(found) >= (2 * 7 + 1 if "layers.0.ffn.gate.weight" in found else 2 * 4 + 1)


def test_the_sequences_of_a_text() -> None:
    assert _TOKENS == SEQUENCE_TOKENS + 1


def entries(path: Path, values: dict[str, np.ndarray]) -> str:
    data = struct.pack("<i", len(values))
    for name, each in values.items():
        data += struct.pack(f"<i{len(name)}sii", len(name), name.encode(), 1, each.size)
        data += each.astype(np.float32).tobytes()
    path.write_bytes(data)
    return str(path)


def test_entries_of_an_importance_matrix(model, tmp_path: Path) -> None:
    folder, reference, _ = model
    rng = np.random.default_rng(0)
    given = {"blk.1.attn_k.weight": rng.uniform(1, 9, 256), "output.weight": np.zeros(256)}
    is_mixture = "mixtral" in type(reference).__name__.lower()
    if is_mixture:
        given["blk.0.ffn_down_exps.weight"] = rng.uniform(1, 9, 4 * 512)
        given["blk.0.ffn_down_exps.weight"][512:1024] = 0  # an expert that was never called
    found = importance(folder, imatrix=entries(tmp_path / "i.dat", given))
    expected = {"layers.1.mixer.k.weight": given["blk.1.attn_k.weight"]}
    for expert in (0, 2, 3) if is_mixture else ():
        values = given["blk.0.ffn_down_exps.weight"].reshape(4, 512)[expert]
        expected[f"layers.0.ffn.experts.{expert}.down.weight"] = values
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values / values.mean(), rtol=1e-5)


def test_parts_of_a_fused_tensor_share_its_entry(model, tmp_path: Path) -> None:
    given = {"blk.0.attn_qkv.weight": np.arange(1, 257), "blk.1.attn_qkv.weight": np.ones(7)}
    found = importance(model[0], imatrix=entries(tmp_path / "i.dat", given))
    assert found.keys() == {f"layers.0.mixer.{part}.weight" for part in "qkv"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"blk.0.attn_q.weight": np.ones(128)}, "128 values for a matrix of 256 columns"),
        ({"blk.0.attn_q.weight": np.ones(512)}, "512 values for a matrix of 256 columns"),
        ({"blk.0.attn_q.weight": -np.ones(256)}, "below 0 or not finite"),
        ({"blk.0.attn_q.weight": np.full(256, np.nan)}, "below 0 or not finite"),
        ({"blk.7.attn_q.weight": np.ones(256)}, "no entry for this model"),
    ],
)
def test_entries_that_do_not_fit(model, tmp_path: Path, values, expected: str) -> None:
    with pytest.raises(MrsError, match=expected) as raised:
        importance(model[0], imatrix=entries(tmp_path / "i.dat", values))
    assert "\n" not in str(raised.value)


def test_weights_are_quantized_by_their_columns(model, tmp_path: Path) -> None:
    folder, reference, _ = model
    weight = reference.model.layers[0].self_attn.v_proj.weight.detach()
    values = np.random.default_rng(1).uniform(0.1, 9, 256) ** 2
    path = entries(tmp_path / "i.dat", {"blk.0.attn_v.weight": values})
    loader = ModelLoader(asked(folder, isq="q2k", imatrix=path))
    weights = loader.load_decoder(lambda progress: None)[1]
    found = weights.matrix("layers.0.mixer.v").rows(torch.arange(128), torch.float32)
    columns = torch.from_numpy(values / values.mean()).float()
    q2k = FORMATS["Q2_K"]
    torch.testing.assert_close(found, decode(encode(weight, q2k, columns), q2k))
    assert not torch.equal(found, decode(encode(weight, q2k), q2k))


def test_the_plan_says_what_a_calibration_needs(model) -> None:
    folder = model[0]
    plain = ModelLoader(asked(folder, isq="q4k")).plan
    plan = ModelLoader(asked(folder, isq="q4k", calibration_file=str(folder / "text"))).plan
    assert [each.needed_bytes for each in plan.breakdowns] == [
        each.needed_bytes for each in plain.breakdowns
    ]
    assert "the calibration needs" in plan.warnings[-1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"isq": "q4k", "imatrix": "x", "calibration_file": "x"}, "exclude each other"),
        ({"imatrix": "x"}, "only with --isq"),
        ({"calibration_file": "x"}, "only with --isq"),
        ({"isq": "q4k", "imatrix": "no-such-file"}, "cannot read no-such-file"),
    ],
)
def test_requests_that_are_refused_early(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(MrsError, match=expected):
        ModelLoader(asked(Path("demo"), **changes))


def test_weights_that_are_quantized_already() -> None:
    source = ModelSource("demo", "safetensors", uqff=("q4k-0.uqff",))
    with pytest.raises(MrsError, match="--imatrix has no effect: weights in UQFF files"):
        ModelLoader(RunRequest(source, imatrix="x"))


def test_only_the_experts(model) -> None:
    folder, reference, _ = model
    loader = ModelLoader(asked(folder, isq="q4k", moqe=True))
    if "Mixtral" not in type(reference).__name__:
        with pytest.raises(MrsError, match="needs a model with experts"):
            _ = loader.plan
        return
    stored = {name: each.format.name for name, each in loader.plan.storage.items()}
    for name, format_name in stored.items():
        assert (format_name == "Q4_K") == (".experts." in name), name
    saved = json.loads(json.dumps(loader.plan.topology.to_json()))
    assert saved == [{"selector": "/\\.ffn\\.experts\\./", "isq": "q4k"}]


def test_an_observation_needs_no_weights() -> None:
    loader = ModelLoader(asked(Path("demo")))
    assert Observation(loader.planner.description).squares == {}
