"""Tiny models with a draft head as published files have them, and what the head computes.

The layer of the head is one more layer of transformers' model. What is around it is written here in
float64, after vLLM's and SGLang's files of these models (`qwen3_next_mtp`, `deepseek_mtp`,
`glm4_moe_mtp`, `glm_ocr_mtp`, `hy_v3_mtp`, `exaone_moe_mtp`, `ernie4_eagle`, `mimo_mtp`,
`mimo_v2_flash_nextn`, `nemotron_h_mtp`), but that some of these leave out the first token's
embedding.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mrs.engine.engine_builder import DraftConfig
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.request import Container, ModelSource, RunRequest
from mrs.run.draft import load_draft
from mrs.run.planned_model import PlannedModel, no_report
from support.gguf_writer import write_text_model

#: What the published names of each kind of head are, outside of its layer.
_MTP = {
    "fc": "mtp.fc.weight",
    "token_norm": "mtp.pre_fc_norm_embedding.weight",
    "state_norm": "mtp.pre_fc_norm_hidden.weight",
    "norm": "mtp.norm.weight",
}
_NEXTN = {
    "fc": "model.layers.{n}.eh_proj.weight",
    "token_norm": "model.layers.{n}.enorm.weight",
    "state_norm": "model.layers.{n}.hnorm.weight",
    "norm": "model.layers.{n}.shared_head.norm.weight",
}
_GGUF = {
    "fc": "blk.{n}.nextn.eh_proj.weight",
    "token_norm": "blk.{n}.nextn.enorm.weight",
    "state_norm": "blk.{n}.nextn.hnorm.weight",
    "norm": "blk.{n}.nextn.shared_head_norm.weight",
}


@dataclass(frozen=True)
class _Kind:
    """A kind of head: its `names`, and what the names of its layers begin with instead.

    `{n}` in a name stands for the number of the layer, and `{h}` for that of the head. `layers` has
    for each of a head's layers what it adds to lists of the config, and `config` what the head adds
    to it. `renamed` are modules that are called otherwise in the head's layer.
    """

    names: dict[str, str] = field(default_factory=lambda: _NEXTN)
    prefixes: tuple[str, ...] = ()
    layers: tuple[dict[str, str], ...] = ({"layer_types": "full_attention"},)
    config: dict[str, Any] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    gguf: dict[str, str] = field(default_factory=lambda: _GGUF)
    reads_normed: bool = True
    feeds_normed: bool = True
    state_first: bool = False


_DENSE = {"layer_types": "full_attention", "mlp_layer_types": "dense"}
_QWEN = _Kind(_MTP, ("mtp.layers.0.",))
_DEEPSEEK = _Kind(config={"num_nextn_predict_layers": 1}, feeds_normed=False)
_KINDS = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN),
    "glm_moe_dsa": replace(_DEEPSEEK, layers=({"indexer_types": "full"},)),
    "hy_v3": _Kind({**_NEXTN, "norm": "model.layers.{n}.final_layernorm.weight"}),
    "exaone_moe": replace(_QWEN, layers=(_DENSE,), config={"mtp_layer_types": ["full_attention"]}),
    "ernie4_5_moe": _Kind(
        {
            "fc": "model.mtp_linear_proj.0.weight",
            "token_norm": "model.mtp_emb_norm.0.weight",
            "state_norm": "model.mtp_hidden_norm.0.weight",
        },
        ("model.mtp_block.0.",),
    ),
    "qwen2": _Kind(
        {
            "fc": "model.mtp_layers.0.input_proj.weight",
            "token_norm": "model.mtp_layers.0.token_layernorm.weight",
            "state_norm": "model.mtp_layers.0.hidden_layernorm.weight",
            "norm": "model.mtp_layers.0.final_layernorm.weight",
        },
        ("model.mtp_layers.0.",),
        config={"model_type": "mimo", "num_nextn_predict_layers": 1},
        state_first=True,
    ),
    "mimo_v2_flash": _Kind(
        {
            "fc": "model.mtp.layers.{h}.eh_proj.weight",
            "token_norm": "model.mtp.layers.{h}.enorm.weight",
            "state_norm": "model.mtp.layers.{h}.hnorm.weight",
            "norm": "model.mtp.layers.{h}.final_layernorm.weight",
        },
        ("model.mtp.layers.{h}.",),
        ({"layer_types": "sliding_attention", "mlp_layer_types": "dense"},),
        renamed={"post_attention_layernorm": "pre_mlp_layernorm"},
        gguf={**_GGUF, "norm": "blk.{n}.layer_output_norm.weight"},
        reads_normed=False,
        feeds_normed=False,
    ),
    "nemotron_h": _Kind(
        {
            "fc": "mtp.layers.0.eh_proj.weight",
            "token_norm": "mtp.layers.0.enorm.weight",
            "state_norm": "mtp.layers.0.hnorm.weight",
            "norm": "mtp.layers.1.final_layernorm.weight",
        },
        ("mtp.layers.0.", "mtp.layers.1."),
        ({"layer_types": "full_attention"}, {"layer_types": "moe"}),
        {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
    ),
}


@dataclass(frozen=True)
class HeadedModel:
    """The model in the folder or GGUF file `path`, and its parts in float64.

    `layers` and `parts` are those of each draft head; `head` is the output head of all.
    """

    target: Any
    layers: list[Any]
    head: Tensor
    parts: list[dict[str, Any]]
    kind: _Kind
    path: Path

    @torch.no_grad()
    def states(self, ids: list[int]) -> Tensor:
        """The target's states (T, hidden) that the head reads."""
        return self.target(torch.tensor([ids]), use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def read(self, ids: list[int], states: Tensor, head: int = 0) -> tuple[Tensor, Tensor]:
        """(logits (T, V), a head's own states (T, hidden)) of tokens after these states."""
        parts, layer = self.parts[head], self.layers[head]
        embedded = self.target.get_input_embeddings()(torch.tensor(ids))
        halves = [parts["token_norm"](embedded), parts["state_norm"](states)]
        if self.kind.state_first:
            halves.reverse()
        joined = torch.cat(halves, -1) @ parts["fc"].T
        x = layer(inputs_embeds=joined[None], use_cache=False).last_hidden_state[0]
        normed = parts["norm"](x) if "norm" in self.kind.names else x
        return normed @ self.head.T, normed if self.kind.feeds_normed else x


@torch.no_grad()
def make_headed_model(
    family: str, config: dict[str, Any], folder: Path, gguf: str | None = None, heads: int = 1
) -> HeadedModel:
    """A random model of `family` with heads, as safetensors, or GGUF of the architecture."""
    torch.manual_seed(5)
    kind = _KINDS.get(family, _DEEPSEEK)
    if heads > 1:
        kind = replace(kind, layers=kind.layers * heads, prefixes=kind.prefixes * heads)
    count = config["num_hidden_layers"]
    whole = _config(family, config, kind)
    model = transformers.AutoModelForCausalLM.from_config(whole, attn_implementation="eager")
    model = model.float().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter += 0.3 * torch.randn_like(parameter)
    inner, norm = model.model, _norm_name(model.model)
    parts = [_parts(getattr(inner, norm)) for _ in range(heads)]
    vectors = [
        {slot: getattr(each[slot], "weight", each[slot]) for slot in kind.names} for each in parts
    ]
    _write(model, whole, vectors, folder, kind, gguf)
    inner = model.double().model
    width = len(kind.layers) // heads
    target, *layers = (
        _cut(inner, range(max(end - width, 0) if end > count else 0, end))
        for end in range(count, count + len(kind.layers) + 1, width)
    )
    for layer in layers:
        setattr(layer, norm, nn.Identity())
    if not kind.reads_normed:
        setattr(target, norm, nn.Identity())
    return HeadedModel(
        target,
        layers,
        model.lm_head.weight,
        [{name: part.double() for name, part in each.items()} for each in parts],
        kind,
        path=folder / "model.gguf" if gguf else folder,
    )


def _parts(norm: Any) -> dict[str, Any]:
    """What is around the layer of a head."""
    parts: dict[str, Any] = {name: deepcopy(norm) for name in ("token_norm", "state_norm", "norm")}
    for each in parts.values():
        each.weight += 0.3 * torch.randn_like(each.weight)
    (hidden,) = norm.weight.shape
    return {**parts, "fc": torch.randn(hidden, 2 * hidden) * 0.3}


def _norm_name(inner: Any) -> str:
    return "norm_f" if hasattr(inner, "norm_f") else "norm"


def _config(family: str, config: dict[str, Any], kind: _Kind) -> Any:
    """The config of the target with the head's layers after its own."""
    config = dict(config)
    config["num_hidden_layers"] += len(kind.layers)
    if family == "ernie4_5_moe":
        config["moe_layer_end_index"] = config["num_hidden_layers"] - 2
    for key in kind.layers[0]:
        if key in config:
            config[key] = [*config[key], *(layer[key] for layer in kind.layers)]
    whole = transformers.AutoConfig.for_model(family, **config)
    for key in kind.layers[0]:
        if getattr(whole, key, None):
            own = [layer[key] for layer in kind.layers]
            setattr(whole, key, [*getattr(whole, key)[: -len(own)], *own])
    return whole


def _cut(inner: Any, layers: range) -> Any:
    """The same model with some of its layers."""
    cut = deepcopy(inner)
    cut.layers = nn.ModuleList(cut.layers[n] for n in layers)
    cut.config._experts_implementation = "eager"  # the usual one has no float64
    if getattr(cut.config, "layer_types", None):
        cut.config.layer_types = [inner.config.layer_types[n] for n in layers]
    if cut.config.num_hidden_layers != len(layers):  # of some, it is the number of layer types
        cut.config.num_hidden_layers = len(layers)
    return cut


def _write(
    model: Any,
    config: Any,
    vectors: list[dict[str, Tensor]],
    folder: Path,
    kind: _Kind,
    gguf: str | None,
) -> None:
    count = config.num_hidden_layers - len(kind.layers)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    written = config.to_dict()
    if gguf is not None:
        own = _named(vectors, kind.gguf, count)
        written["draft_heads"] = len(vectors)
        write_text_model(folder / "model.gguf", gguf, written, {**tensors, **own})
        return
    for index, prefix in enumerate(kind.prefixes):
        old = re.compile(rf"\w+\.layers\.{count + index}\.")
        prefix = prefix.format(h=index)
        tensors = {_renamed(name, old, prefix, kind): each for name, each in tensors.items()}
    tensors |= _named(vectors, kind.names, count)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    if "num_hidden_layers" in written:  # of some, it is the number of layer types
        written["num_hidden_layers"] = count
    for key in ("layer_types", "mlp_layer_types", "indexer_types", "layers_block_type"):
        if written.get(key):
            written[key] = written[key][:count]
    own_config = dict(kind.config)
    if "num_nextn_predict_layers" in own_config:
        own_config["num_nextn_predict_layers"] = len(vectors)
    (folder / "config.json").write_text(json.dumps({**written, **own_config}))


def _named(
    vectors: list[dict[str, Tensor]], names: dict[str, str], count: int
) -> dict[str, Tensor]:
    """What is outside of the heads' layers by its names in files."""
    return {
        names[slot].format(n=count + head, h=head): tensor
        for head, each in enumerate(vectors)
        for slot, tensor in each.items()
    }


def _renamed(name: str, old: re.Pattern[str], prefix: str, kind: _Kind) -> str:
    found = old.match(name)
    if found is None:
        return name
    rest = name[found.end() :]
    module = rest.partition(".")[0]
    return prefix + kind.renamed.get(module, module) + rest.removeprefix(module)


@dataclass
class LoadedHead:
    """A model with a draft head, loaded as a run does."""

    model: PlannedModel
    target: Decoder
    weights: ModelWeights
    draft: DraftConfig


def load_headed(truth: HeadedModel, **settings: Any) -> LoadedHead:
    container: Container = "gguf" if truth.path.suffix else "safetensors"
    request = RunRequest(
        ModelSource(str(truth.path), container),
        dtype="f32",
        cpu=True,
        mtp=True,
        **{"max_seq_len": 64, **settings},
    )
    model = PlannedModel(request)
    target, weights = model.load_decoder(no_report)
    draft = load_draft(model, weights, no_report)
    assert draft is not None, model.plan.warnings
    return LoadedHead(model, target, weights, draft)
