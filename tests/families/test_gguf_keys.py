"""Every key of a GGUF file's architecture is honoured, refused, or named in a warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity_cases import CASES, REPRESENTATIVES, Case
from safetensors.torch import load_file
from transformers_reference import new_model, save

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.errors import MrsError, Unsupported
from mrs.request import ModelSource
from mrs.source.checkpoint import Checkpoint
from mrs.source.find import open_checkpoint
from support.gguf_writer import write_text_model
from support.suites import suite_of

#: The keys that llama.cpp asks for in files of each architecture, read off its sources.
KEYS: dict[str, list[str]] = json.loads(Path(__file__).with_name("llama_cpp_keys.json").read_text())
COMMON = KEYS.pop("every architecture")
#: One file of each architecture.
FIRST = {case.gguf: case for case in reversed(CASES) if case.gguf is not None}
_OF_KINDS = {case.gguf for case in CASES if case.id in REPRESENTATIVES}
#: Core has those that stand for a kind of layer.
ARCHITECTURES = [pytest.param(arch, marks=suite_of(arch, _OF_KINDS)) for arch in sorted(FIRST)]

#: Other values of keys for which a number will not do.
VALUES: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "attention.causal": False,
    "attention.indexer.types": [0, 1] * 8,
    "attention.recurrent_layers": [0, 1] * 8,
    "attention.sliding_window_pattern": [1, 0, 0] * 8,
    "expert_weights_norm": True,
    "hidden_activation": "relu",
    "rope.scaling.finetuned": False,
    "use_parallel_residual": False,
}
#: Keys that change nothing, and why that needs no word.
NOTHING = {
    "attention.head_count_kv": "tensors have the size",
    "attention.key_length": "tensors have the size",
    "attention.value_length": "tensors have the size",
    "expert_feed_forward_length": "tensors have the size",
    "expert_shared_count": "tensors have the size",
    "expert_shared_feed_forward_length": "tensors have the size",
    "feed_forward_length": "tensors have the size",
    "ssm.inner_size": "it is heads times their size",
    "vocab_size": "tensors have the size",
    "attention.layer_norm_epsilon": "all norms are RMS norms, which have a key of their own",
    "rope.dimension_count": "the factors of all pairs are a tensor",
    "rope.dimension_sections": "tokens of text have one position",
    "rope.freq_base_swa": "this file has no windows",
    "rope.scale_linear": "the newer key says it",
    "rope.scaling.finetuned": "it says how the model was trained",
    "rope.scaling.original_context_length": "there is no scaling",
    "rope.scaling.type": "the file has the same",
    "rope.scaling.yarn_log_multiplier": "there is no scaling",
}


@pytest.fixture(scope="session")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Checkpoint]:
    """The headers of a case's GGUF file, written once."""

    @cache
    def made(case: Case) -> Checkpoint:
        folder = tmp_path_factory.mktemp("gguf")
        config = transformers.AutoConfig.for_model(case.family, **case.config)
        with torch.no_grad():
            save(new_model(case, config), folder)
        tensors = load_file(folder / "model.safetensors")
        text = {name.replace("model.language_model.", "model."): t for name, t in tensors.items()}
        path = folder / "model.gguf"
        assert case.gguf is not None
        write_text_model(path, case.gguf, config.to_dict(), text)
        return open_checkpoint(ModelSource(str(path), "gguf"))

    return made


def with_key(file: Checkpoint, name: str, value: Any) -> Checkpoint:
    """The same file with a key after the architecture's name."""
    key = f"{file.config['general.architecture']}.{name}"
    return replace(file, config={**file.config, key: value})


def described(file: Checkpoint, name: str, value: Any) -> Description:
    return describe(with_key(file, name, value))


def other_value(name: str, old: Any) -> Any:
    """A value of a key that is not the one that the file has."""
    if isinstance(old, (list, tuple)):
        return [other_value("", each) for each in old]
    if isinstance(old, bool):
        return not old
    if name in VALUES:
        return VALUES[name]
    if isinstance(old, int):
        return old + 1
    is_count = any(part in name for part in ("count", "length", "type", "func", "step", "window"))
    return 3 if is_count else 3.25 + (old or 0)


@pytest.mark.few(8)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_key_that_llama_cpp_reads_is_honoured_refused_or_named(arch: str, file_of) -> None:
    file = file_of(FIRST[arch])
    usual = describe(file)
    has_rope = any(layer.mixer.rope is not None for layer in usual.spec.layers)
    has_still_rope = arch == "kimi-linear"
    silent = []
    for name in {*COMMON, *KEYS[arch]}:
        key = f"{arch}.{name}"
        try:
            found = described(file, name, other_value(name, file.config.get(key)))
        except MrsError:
            continue
        is_named = any(key in line for line in found.warnings)
        if found.spec == usual.spec and not is_named and name not in NOTHING:
            silent.append(name)
    if not has_rope or has_still_rope:
        silent = [name for name in silent if not name.startswith("rope.")]
    assert silent == []


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_unknown_key_is_named_in_a_warning(arch: str, file_of) -> None:
    file = file_of(FIRST[arch])
    assert describe(file).warnings == ()
    found = described(file, "attention.brand_new", 1.5)
    line = f"keys of the GGUF file that are not used: {arch}.attention.brand_new"
    assert found.warnings == (line,)


def rope_of(found: Description) -> Any:
    rope = found.spec.layers[0].mixer.rope
    assert rope is not None
    return rope.scaling


@pytest.fixture
def llama(file_of) -> Checkpoint:
    return file_of(next(case for case in CASES if case.id == "llama-default"))


@pytest.mark.parametrize("name", ["rope.scale_linear", "rope.scaling.factor"])
def test_a_factor_without_a_type_is_linear(llama: Checkpoint, name: str) -> None:
    scaling = rope_of(described(llama, name, 4.0))
    assert (scaling.kind, scaling.get("factor", 1)) == ("linear", 4.0)


@pytest.mark.parametrize("name", ["rope.scale_linear", "rope.scaling.factor"])
@pytest.mark.parametrize("value", [0, 0.0, 1.0])
def test_a_factor_of_0_or_1_scales_nothing(llama: Checkpoint, name: str, value: float) -> None:
    found = described(llama, name, value)
    assert rope_of(found) is None
    assert found.warnings == ()


def test_the_type_none_switches_a_factor_off(llama: Checkpoint) -> None:
    file = with_key(with_key(llama, "rope.scaling.type", "none"), "rope.scaling.factor", 4.0)
    assert rope_of(describe(file)) is None


def test_a_magnitude_multiplies_that_of_yarn(llama: Checkpoint) -> None:
    """llama.cpp multiplies both; 1.2772589 is 0.1 ln(16) + 1."""
    file = with_key(with_key(llama, "rope.scaling.type", "yarn"), "rope.scaling.factor", 16.0)
    scaling = rope_of(described(file, "rope.scaling.attn_factor", 0.5))
    assert scaling.get("attention_factor", 0) == pytest.approx(0.5 * 1.2772589)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope.scaling.attn_factor", 1.5),
        ("rope.scaling.type", "spiral"),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.scale", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", -30.0),
        ("logit_scale", 0.25),
        ("residual_scale", 0.5),
        ("embedding_scale", 12.0),
        ("embedding_length_out", 17),
        ("rope.freq_base_swa", 1234.0),
        ("attention.key_length_swa", 77),
        ("swiglu_clamp_exp", [7.0, 7.0]),
    ],
)
def test_what_changes_results_is_refused_by_name(llama: Checkpoint, name: str, value: Any) -> None:
    with pytest.raises(MrsError) as error:
        described(llama, name, value)
    assert name.rpartition(".")[2] in str(error.value) or "spiral" in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("yarn_ext_factor", 0.5), ("yarn_ext_factor", 0.0)])
def test_yarn_without_its_whole_extension_is_refused(
    llama: Checkpoint, name: str, value: float
) -> None:
    file = with_key(with_key(llama, "rope.scaling.type", "yarn"), "rope.scaling.factor", 16.0)
    assert rope_of(described(file, f"rope.scaling.{name}", -1.0)).kind == "yarn"
    with pytest.raises(Unsupported, match=name):
        described(file, f"rope.scaling.{name}", value)


def test_a_period_of_windows_is_honoured(file_of) -> None:
    file = file_of(next(case for case in CASES if case.gguf == "gemma3"))
    layers = described(file, "attention.sliding_window_pattern", 3).spec.layers
    windows = [bool(layer.mixer.window) for layer in layers]
    assert windows == [(index + 1) % 3 != 0 for index in range(len(layers))]
    all_local = described(file, "attention.sliding_window_pattern", 0).spec.layers
    assert all(layer.mixer.window for layer in all_local)


def test_granite_without_rope_says_that_it_is_not_finetuned(file_of) -> None:
    file = file_of(FIRST["granite"])
    assert rope_of(described(file, "rope.scaling.finetuned", True)) == rope_of(describe(file))
    layers = described(file, "rope.scaling.finetuned", False).spec.layers
    assert all(layer.mixer.rope is None for layer in layers)


def test_routers_are_those_that_the_file_asks_for(file_of) -> None:
    file = file_of(FIRST["minimax-m2"])
    assert described(file, "expert_gating_func", 2).spec == describe(file).spec
    with pytest.raises(Unsupported, match="expert_gating_func = 1"):
        described(file, "expert_gating_func", 1)


def test_experts_of_granite_with_windows_are_refused_by_name(file_of) -> None:
    file = file_of(FIRST["granite_swa"])
    with pytest.raises(Unsupported, match="experts of Granite SWA"):
        described(file, "expert_count", 4)
