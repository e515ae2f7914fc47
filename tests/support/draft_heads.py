"""Tiny models with a draft head as published files have them, and what the head computes.

The layer of the head is one more layer of transformers' model. What is around it is written here in
float64, after vLLM's files of these models (`qwen3_next_mtp`, `deepseek_mtp`, `glm4_moe_mtp`), but
that these leave out the first token's embedding.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
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
class HeadedModel:
    """The model in `folder`, or in the GGUF file `path`, and its parts in float64."""

    target: Any
    layer: Any
    head: Tensor
    parts: dict[str, Any]
    feeds_normed: bool
    path: Path

    @torch.no_grad()
    def states(self, ids: list[int]) -> Tensor:
        """The target's states (T, hidden) after its final norm."""
        return self.target(torch.tensor([ids]), use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def read(self, ids: list[int], states: Tensor) -> tuple[Tensor, Tensor]:
        """(logits (T, V), the head's own states (T, hidden)) of tokens after these states."""
        embedded = self.target.embed_tokens(torch.tensor(ids))
        tokens, before = self.parts["token_norm"](embedded), self.parts["state_norm"](states)
        joined = torch.cat([tokens, before], -1) @ self.parts["fc"].T
        x = self.layer(inputs_embeds=joined[None], use_cache=False).last_hidden_state[0]
        normed = self.parts["norm"](x)
        return normed @ self.head.T, normed if self.feeds_normed else x


@torch.no_grad()
def make_headed_model(
    family: str, config: dict[str, Any], folder: Path, gguf: str | None = None
) -> HeadedModel:
    """A random model of `family` with a head, as safetensors, or GGUF of the architecture."""
    torch.manual_seed(5)
    count, config = config["num_hidden_layers"], dict(config)
    config["num_hidden_layers"] = count + 1
    if "layer_types" in config:
        config["layer_types"] = [*config["layer_types"], "full_attention"]
    whole = transformers.AutoConfig.for_model(family, **config)
    model = transformers.AutoModelForCausalLM.from_config(whole, attn_implementation="eager")
    model = model.float().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter += 0.3 * torch.randn_like(parameter)
    parts = {name: deepcopy(model.model.norm) for name in ("token_norm", "state_norm", "norm")}
    for norm in parts.values():
        norm.weight += 0.3 * torch.randn_like(norm.weight)
    vectors = {name: norm.weight for name, norm in parts.items()}
    hidden = whole.hidden_size
    vectors["fc"] = torch.randn(hidden, 2 * hidden) * 0.3
    is_qwen = family.startswith("qwen")
    _write(model, whole, vectors, folder, _MTP if is_qwen else _NEXTN, gguf)
    model = model.double()
    target, layer = _cut(model.model, range(count)), _cut(model.model, range(count, count + 1))
    layer.norm = nn.Identity()
    doubled = {name: norm.double() for name, norm in parts.items()}
    return HeadedModel(
        target,
        layer,
        model.lm_head.weight,
        {**doubled, "fc": vectors["fc"].double()},
        feeds_normed=is_qwen,
        path=folder / "model.gguf" if gguf else folder,
    )


def _cut(inner: Any, layers: range) -> Any:
    """The same model with some of its layers."""
    cut = deepcopy(inner)
    cut.layers = nn.ModuleList(cut.layers[n] for n in layers)
    cut.config._experts_implementation = "eager"  # the usual one has no float64
    cut.config.num_hidden_layers = len(layers)
    if getattr(cut.config, "layer_types", None):
        cut.config.layer_types = [inner.config.layer_types[n] for n in layers]
    return cut


def _write(
    model: Any,
    config: Any,
    vectors: dict[str, Tensor],
    folder: Path,
    names: dict[str, str],
    gguf: str | None,
) -> None:
    count = config.num_hidden_layers - 1
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    written = config.to_dict()
    if gguf is not None:
        own = {_GGUF[slot].format(n=count): tensor for slot, tensor in vectors.items()}
        written["has_draft_head"] = True
        write_text_model(folder / "model.gguf", gguf, written, {**tensors, **own})
        return
    if names is _MTP:
        old, new = f"model.layers.{count}.", "mtp.layers.0."
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    tensors |= {names[slot].format(n=count): tensor for slot, tensor in vectors.items()}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    written["num_hidden_layers"] = count
    for key in ("layer_types", "mlp_layer_types"):
        if written.get(key):
            written[key] = written[key][:count]
    if names is _NEXTN:
        written["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(written))


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
