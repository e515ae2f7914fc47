"""`mrs quantize --bits`, `--size` and `--fit`: formats of GGUF files by measured loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from mrs.engine import sensitivity
from mrs.engine.calibration_text import Observation
from mrs.engine.column_importance import Observed
from mrs.formats import FORMATS
from mrs.model.batch import SequenceInput, forward_batch
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs_cli.app import main

TEXT = "Once upon a time there was a small robot. It liked to help people in the garden. " * 12


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return str(path)


def quantized(target: Path, *flags: str) -> Path:
    assert main(["quantize", "-m", "demo", "--cpu", *flags, "-o", str(target)]) == 0
    return target


def log_probabilities(source: ModelSource, **changed: Any) -> torch.Tensor:
    """Of the next token after each of some others (N, vocab)."""
    decoder = ModelLoader(RunRequest(source, cpu=True, calibration=False, **changed)).load_decoder(
        lambda progress: None
    )[0]
    ids = range(20, 60)
    cache = decoder.new_cache(len(ids), len(ids))
    fed = SequenceInput(cache, ids, logits_rows=range(len(ids)))
    with torch.inference_mode():
        return decoder.forward(forward_batch([fed]), [cache]).double().log_softmax(-1)


def test_probed_sequences_are_apart_from_each_other() -> None:
    request = RunRequest(ModelSource("demo", "safetensors"), cpu=True, calibration=False)
    loader = ModelLoader(request)
    decoder = loader.load_decoder(lambda progress: None)[0]
    model = Observed(decoder, Observation(loader.planner.description), [], [])
    sequences = [range(20, 50), range(60, 90), range(5, 35)]
    with torch.inference_mode():
        together = sensitivity._reference(model, sequences)
        alone = [sensitivity._reference(model, [each]) for each in sequences]
    assert torch.equal(together, torch.cat(alone))


def test_less_is_lost_than_in_a_usual_mix_of_the_same_size(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = quantized(tmp_path / "usual.gguf", "--isq", "Q4_K_M")
    size_bytes = usual.stat().st_size
    capsys.readouterr()
    measured = quantized(
        tmp_path / "measured.gguf", "--size", str(size_bytes), "--calibration-file", text, "--json"
    )
    formats = json.loads(capsys.readouterr().out)["formats"]
    assert 0.97 * size_bytes < measured.stat().st_size <= size_bytes
    found = {each.name: each.tensor_type.name for each in gguf.GGUFReader(measured).tensors}
    assert {name: found[name] for name in formats} == formats
    assert len(set(formats.values())) > 2
    exact = log_probabilities(ModelSource("demo", "safetensors"), exact=True, dtype="f32")
    lost = [
        (exact.exp() * (exact - log_probabilities(ModelSource(str(path), "gguf")))).sum(-1).mean()
        for path in (usual, measured)
    ]
    assert lost[1] < 0.7 * lost[0]


def test_bits_of_all_weights(
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = quantized(tmp_path / "x.gguf", "--bits", "5", "--calibration-file", text)
    assert "formats of the matrices" in capsys.readouterr().out
    assert any("128 tokens of it" in record.message for record in caplog.records)
    tensors = gguf.GGUFReader(path).tensors
    bits = 8 * sum(int(each.n_bytes) for each in tensors) / sum(int(e.n_elements) for e in tensors)
    assert 4.8 < bits <= 5


REFUSED = {
    "no text": (["--bits", "5"], "none is given"),
    "two budgets": (["--bits", "5", "--size", "1GiB"], "exclude each other"),
    "a size": (["--size", "much"], "not a size"),
    "with isq": (["--bits", "5", "--isq", "q4k"], "the formats that --isq"),
    "few bits": (["--bits", "1.5", "--calibration-file", "TEXT"], "too few"),
    "a small file": (["--size", "64KiB", "--calibration-file", "TEXT"], "need"),
    "no machine": (["--fit", "abacus", "--calibration-file", "TEXT"], "abacus"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, message = REFUSED[name]
    words = [text if word == "TEXT" else word for word in flags]
    assert main(["quantize", "-m", "demo", "--cpu", *words, "-o", str(tmp_path / "x.gguf")]) != 0
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_folders_have_no_budget(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--bits", "5", "--calibration-file", text, "-o", str(tmp_path / "x")]
    assert main(["quantize", "-m", "demo", "--cpu", *words]) != 0
    assert "a budget is for GGUF files" in capsys.readouterr().err


def test_all_weights_fit_a_large_machine(text: str, tmp_path: Path) -> None:
    """Then none of them is quantized."""
    path = quantized(tmp_path / "x.gguf", "--fit", "RTX 4090", "--calibration-file", text)
    found = {each.tensor_type.name for each in gguf.GGUFReader(path).tensors}
    assert not any(name.startswith("Q") for name in found)


def test_experts_and_a_gguf_file(text: str, tmp_path: Path) -> None:
    """All experts of a layer get one format; a file of 8 bits gets fewer, and none more."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "mixtral", hidden_size=256, intermediate_size=256, num_hidden_layers=2, vocab_size=300,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    words = ["--cpu", "--calibration-file", text, "-o"]
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    model = ["quantize", "-m", str(tmp_path / "model"), "--bits", "8.6"]
    assert main([*model, *words, str(first)]) == 0
    assert main(["quantize", "-m", str(first), "--bits", "4.5", *words, str(second)]) == 0
    found = [
        {each.name: each.tensor_type.name for each in gguf.GGUFReader(path).tensors}
        for path in (first, second)
    ]
    bits = [
        {name: FORMATS[each].bits_per_weight for name, each in formats.items()} for formats in found
    ]
    assert bits[0]["blk.0.ffn_up_exps.weight"] < 32
    assert bits[0].keys() == bits[1].keys()
    assert all(bits[1][name] <= bits[0][name] for name in bits[0])
    assert second.stat().st_size < 0.56 * first.stat().st_size
