"""Tensors that the model does not use are named in a warning, unless it would need them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import transformers
from parity_cases import CASES, Case
from safetensors.torch import load_file, save_file
from transformers_reference import new_model, save

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.errors import NotReadable, Unsupported
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint
from support.gguf_writer import write_text_model

DEFAULTS = {case.family: case for case in CASES if case.name == "default"}


def saved(case: Case, folder: Path) -> Path:
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    with torch.no_grad():
        save(new_model(case, config), folder)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return saved(DEFAULTS["llama"], tmp_path)


def described(
    folder: Path, more: Iterable[str] = (), *, less: Iterable[str] = (), **config: object
) -> Description:
    """The model in a folder with `more` tensors, without those in `less`."""
    file, settings = folder / "model.safetensors", folder / "config.json"
    tensors = {name: t for name, t in load_file(file).items() if name not in less}
    save_file({**tensors, **{name: torch.zeros(8) for name in more}}, file)
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **config}))
    return describe(open_checkpoint(ModelSource(str(folder), "safetensors")))


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["v_head.summary.weight", "v_head.summary.bias"], "2 tensors are not used: v_head.*"),
        (["score.weight"], "1 tensor is not used: score.*"),
        (["mtp.layers.0.mlp.up_proj.weight", "mtp.norm.weight"], "2 tensors are not used: mtp.*"),
        (["d2t", "t2d"], "2 tensors are not used: d2t, t2d"),
        (
            ["model.layers.9.mlp.up_proj.weight", "model.layers.10.input_layernorm.weight"],
            "2 tensors are not used: model.layers.10.*, model.layers.9.*",
        ),
        (
            [f"model.layers.{n}.self_attn.q_proj.lora_A.default.weight" for n in range(2)],
            "2 tensors are not used: model.layers.*.self_attn.q_proj.lora_A.*",
        ),
        (["vision_tower.patch_embed.weight"], "1 tensor is not used: vision_tower.*"),
        (["audio_tower.conv1.weight"], "1 tensor is not used: audio_tower.*"),
        (["model.visual.blocks.0.norm.weight"], "1 tensor is not used: model.visual.*"),
        (["multi_modal_projector.linear.weight"], "1 tensor is not used: multi_modal_projector.*"),
        (["prompt_encoder.embedding.weight"], "1 tensor is not used: prompt_encoder.*"),
    ],
)
def test_modules_of_another_purpose_are_named(llama: Path, names: list[str], line: str) -> None:
    usual = described(llama)
    found = described(llama, names)
    assert found.warnings == (line,)
    assert (found.spec, found.parameters) == (usual.spec, usual.parameters)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.cos_cached",
        "model.layers.1.self_attn.k_scale",
        "model.layers.0.attn.masked_bias",
    ],
)
def test_buffers_that_follow_from_the_config_need_no_word(llama: Path, name: str) -> None:
    assert described(llama, [name]).warnings == ()


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.mlp.down_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.input_layernorm.bias",
        "model.layers.0.head_gain",
        "model.layers.0.self_attn.score.weight",
        "model.layers.1.vision_gate",
        "model.norm.bias",
        "lm_head.bias",
        "model.embed_layernorm.weight",
        "model.embed_tokens_per_layer.weight",
        "rope_freqs.weight",
    ],
)
def test_what_the_model_would_need_is_an_error(llama: Path, name: str) -> None:
    with pytest.raises(Unsupported, match="is not part of this architecture") as error:
        described(llama, [name])
    assert name in str(error.value)


def test_many_groups_are_counted(llama: Path) -> None:
    names = [f"part_{letter}.weight" for letter in "abcdefghij"]
    (line,) = described(llama, names).warnings
    assert line.startswith("10 tensors are not used: part_a.*, ")
    assert line.endswith("part_h.* and 2 more")


def gguf_file(case: Case, folder: Path, more: Iterable[str]) -> Description:
    saved(case, folder)
    config = transformers.AutoConfig.for_model(case.family, **case.config).to_dict()
    added = {name: torch.zeros(8) for name in more}
    tensors = load_file(folder / "model.safetensors")
    path = folder / "model.gguf"
    assert case.gguf is not None
    write_text_model(path, case.gguf, config, {**tensors, **added})
    return describe(open_checkpoint(ModelSource(str(path), "gguf")))


def test_further_layers_of_a_gguf_file_are_named(tmp_path: Path) -> None:
    found = gguf_file(DEFAULTS["llama"], tmp_path, ["blk.7.attn_q.weight", "blk.7.extra.weight"])
    assert found.warnings == ("2 tensors are not used: blk.7.*",)


def test_a_bias_in_a_used_layer_of_a_gguf_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"blk\.0\.ffn_norm\.bias"):
        gguf_file(DEFAULTS["llama"], tmp_path, ["blk.0.ffn_norm.bias"])


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt2"])
def test_a_tied_model_with_the_head_alone_loads(family: str, tmp_path: Path) -> None:
    folder = saved(DEFAULTS[family], tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (name,) = (n for n in tensors if n.endswith(("embed_tokens.weight", "wte.weight")))
    tensors.pop("lm_head.weight", None)
    save_file(tensors, file)
    usual = described(folder, tie_word_embeddings=True)
    tensors["lm_head.weight"] = tensors.pop(name)
    save_file(tensors, file)
    found = described(folder)
    assert found.spec == usual.spec
    assert found.warnings == ()
    pieces = {p.name: p.pieces[0].tensor for p in found.parameters}
    assert pieces["embedding.weight"] == "lm_head.weight"
    with pytest.raises(NotReadable, match=r"lm_head.weight|embed_tokens|wte"):
        described(folder, less=["lm_head.weight"])


def test_an_untied_model_without_its_embedding_is_incomplete(llama: Path) -> None:
    with pytest.raises(NotReadable, match=r"embed_tokens\.weight' is missing"):
        described(llama, less=["model.embed_tokens.weight"], tie_word_embeddings=False)
