"""Families that nobody has published, built by the recipe in `mrs.families`, and their truth.

Each needs a field that no spec has. The package is copied, and the copy changed as the recipe says:
a file of the family, the field, and the module that computes it. No fast path is touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import mrs

CONFIG: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "torch_dtype": "float32",
}
HEAD_DIM = 16
EXPERTS, CHOSEN = 4, 2


@dataclass(frozen=True)
class Edit:
    """In a file of the package, `new` goes where `old` is, once, after it."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class MadeUp:
    """A family: its file, changes of the package, config keys, and further tensors.

    `vectors` are those of each layer, or of no layer if their names begin with `model.`. `owner` is
    the spec that has the field; processes with some of the layers have to know one of the model.
    `gguf` has the names of the vectors in GGUF files.
    """

    name: str
    field_name: str
    source: str
    edits: tuple[Edit, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    vectors: Mapping[str, int] = field(default_factory=dict)
    has_experts: bool = False
    owner: str = "Layer"
    gguf: Mapping[str, str] = field(default_factory=dict)


_HEADER = """
from mrs.config.config import Config
from mrs.architecture.family import Family
from mrs.layers.layer import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.layers.mlp.spec import SPARSE_BLOCK
from mrs.config.layer_kinds import layer_count, of_layers
from mrs.architecture.decoder_config import decoder
from mrs.layers.attention.config import read_attention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
"""
FABLE = MadeUp(
    "fable",
    "head_gain",
    f'''"""Fable: Llama with a learned gain for the output of each head."""
{_HEADER}

def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    layer = Layer(read_attention(config, head_gain=True), read_mlp(config), norm)
    return decoder(config, "fable", [layer] * layer_count(config), norm)


FAMILY = Family(
    "fable",
    read,
    gguf_arch="fable",
    safetensors={{"mixer.head_gain": "self_attn.head_gain"}},
    gguf={{"mixer.head_gain": "attn_head_gain.weight"}},
)
''',
    (
        Edit(
            "layers/attention/spec.py",
            "    alibi: tuple[float, ...] = ()\n",
            "    head_gain: bool = False\n",
        ),
        Edit(
            "layers/attention/spec.py",
            '            yield Slot("mixer.sinks", (self.heads,), "vector", suffix="")\n',
            "        if self.head_gain:\n"
            '            yield Slot("mixer.head_gain", (self.heads,), "vector", suffix="")\n',
        ),
        Edit(
            "graph/attention_operations.py",
            "    if attention.value_scale != 1.0:\n"
            "        graph.add(Scale(attended, attention.value_scale))\n",
            "    if attention.head_gain:\n"
            '        graph.add(ScaleEach(attended, "mixer.head_gain", attention.value_dim))\n',
        ),
        Edit(
            "graph/attention_operations.py",
            "    Scale,\n",
            "    ScaleEach,\n",
        ),
    ),
    vectors={"self_attn.head_gain": 4},
    owner="Attention",
    gguf={"self_attn.head_gain": "attn_head_gain.weight"},
)
GRIMM = MadeUp(
    "grimm",
    "second_norm",
    f'''"""Grimm: Llama with a second norm, of what the MLP adds."""
{_HEADER}

def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    layer = Layer(read_attention(config), read_mlp(config), norm, second_norm=True)
    return decoder(config, "grimm", [layer] * layer_count(config), norm)


FAMILY = Family("grimm", read, safetensors={{"ffn.second_norm": "mlp.second_norm"}})
''',
    (
        Edit(
            "layers/layer.py",
            "    altup: AltUp | None = None\n",
            "    second_norm: bool = False\n",
        ),
        Edit(
            "layers/layer.py",
            "        yield from self.feed_forward.slots(hidden_size)\n",
            "        if self.second_norm:\n"
            '            yield from norm_slots("ffn.second_norm", hidden_size, self.norm)\n',
        ),
        Edit(
            "graph/layer_graph.py",
            "        out = self._transformed(normed)\n",
            "        if layer.second_norm:\n"
            '            norm = self._graph.norm(out, out, "ffn.second_norm", layer.norm)\n'
            "            self._graph.add(norm)\n",
        ),
    ),
    vectors={"mlp.second_norm.weight": 64},
)
SAGA = MadeUp(
    "saga",
    "temperature",
    f'''"""Saga: Mixtral whose routers have a temperature in each layer."""
{_HEADER}

def read(config: Config) -> ModelSpec:
    norm, attention = read_norm(config), read_attention(config)
    routers = [
        read_router(config, norm_topk_prob=True, temperature=each)
        for each in of_layers(config, "router_temperatures")
    ]
    expert = read_expert(config, "intermediate_size")
    layers = [Layer(attention, Moe(router, expert), norm) for router in routers]
    return decoder(config, "saga", layers, norm)


FAMILY = Family("saga", read, safetensors=SPARSE_BLOCK)
''',
    (
        Edit(
            "layers/moe/spec.py",
            "    expert_scale: bool = False\n",
            "    temperature: float = 1.0\n",
        ),
        Edit(
            "layers/moe/module.py",
            "        logits = linear(x, self._vectors.weight, self._vectors.bias)  # (N, E)\n",
            "        logits = logits / router.temperature\n",
        ),
    ),
    config={
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "router_temperatures": [0.5, 1.0, 3.0, 8.0],
    },
    has_experts=True,
    owner="Router",
)
ODE = MadeUp(
    "ode",
    "inner_gain",
    f'''"""Ode: Llama with a learned gain for what goes into the last product of the MLP."""
{_HEADER}

def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    layer = Layer(read_attention(config), read_mlp(config, inner_gain=True), norm)
    return decoder(config, "ode", [layer] * layer_count(config), norm)


FAMILY = Family(
    "ode",
    read,
    gguf_arch="ode",
    safetensors={{"ffn.inner_gain": "mlp.inner_gain"}},
    gguf={{"ffn.inner_gain": "ffn_inner_gain.weight"}},
)
''',
    (
        Edit(
            "layers/mlp/spec.py",
            "    xielu_values: tuple[float, ...] = ()\n",
            "    inner_gain: bool = False\n",
        ),
        Edit(
            "layers/mlp/spec.py",
            '        yield from mlp_slots("ffn", self, hidden_size)\n',
            "        if self.inner_gain:\n"
            '            yield Slot("ffn.inner_gain", (self.intermediate,), "vector", suffix="")\n',
        ),
        Edit(
            "graph/feed_forward_operations.py",
            "        graph.add(Activate(gate, up[0] if up else None, mlp.activation, mlp.clamp))\n",
            '    if mlp.inner_gain:\n        graph.add(ScaleEach(gate, f"{name}.inner_gain"))\n',
        ),
        Edit(
            "graph/feed_forward_operations.py",
            "    Scale,\n",
            "    ScaleEach,\n",
        ),
    ),
    vectors={"mlp.inner_gain": 96},
    owner="Mlp",
    gguf={"mlp.inner_gain": "ffn_inner_gain.weight"},
)
MYTH = MadeUp(
    "myth",
    "embedding_gain",
    f'''"""Myth: Llama with a learned gain for each value of an embedding."""

from dataclasses import replace
{_HEADER}

def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    layer = Layer(read_attention(config), read_mlp(config), norm)
    spec = decoder(config, "myth", [layer] * layer_count(config), norm)
    return replace(spec, embedding_gain=True)


FAMILY = Family(
    "myth",
    read,
    gguf_arch="myth",
    safetensors={{"embedding_gain": "model.embedding_gain"}},
    gguf={{"embedding_gain": "token_embd_gain.weight"}},
)
''',
    (
        Edit(
            "architecture/model_spec.py",
            "    embedding_size: int | None = None\n",
            "    embedding_gain: bool = False\n",
        ),
        Edit(
            "architecture/model_spec.py",
            "        width = self.embedding_size or self.hidden_size\n",
            "        if self.embedding_gain:\n"
            '            yield Slot("embedding_gain", (width,), "vector", suffix="")\n',
        ),
        Edit(
            "model/decoder.py",
            "        self._head = self.pooler = None\n",
            '        self._gain = weights.optional_vector("embedding_gain")\n',
        ),
        Edit(
            "model/decoder.py",
            "        x = maybe_norm(self._embedding_norm, x)\n",
            "        x = x if self._gain is None else x * self._gain.to(x.dtype)\n",
        ),
    ),
    vectors={"model.embedding_gain": 64},
    owner="ModelSpec",
    gguf={"model.embedding_gain": "token_embd_gain.weight"},
)
MADE_UP = (FABLE, GRIMM, SAGA, ODE, MYTH)


def build_package(family: MadeUp, folder: Path, *, knows_shares: bool = False) -> None:
    """A copy of the package with the family in it.

    With `knows_shares` its field is named among those that processes can share.
    """
    source = Path(mrs.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "native_cache")
    shutil.copytree(source, folder / "mrs", ignore=ignored)
    (folder / "mrs" / "families" / f"{family.name}.py").write_text(family.source)
    for edit in (*family.edits, *([_share(family)] if knows_shares else ())):
        file = folder / "mrs" / edit.file
        text = file.read_text()
        assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
        file.write_text(text.replace(edit.old, edit.old + edit.new))


def _share(family: MadeUp) -> Edit:
    """Its field is named among those that processes can share."""
    old = "SHARDABLE: Known = with_fields(SETTLED"
    return Edit("architecture/shardable.py", old, f', {family.owner}="{family.field_name}"')


def write_model(family: MadeUp, folder: Path) -> dict[str, Tensor]:
    """A tiny model with random weights, which are returned."""
    torch.manual_seed(len(family.name))
    folder.mkdir()
    config = {**CONFIG, **family.config, "model_type": family.name}
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner, rows = 64, CONFIG["intermediate_size"], CONFIG["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (rows, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (rows, hidden),
    }
    for index in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{index}."
        kv = CONFIG["num_key_value_heads"] * HEAD_DIM
        attention = {"q": (hidden, hidden), "k": (kv, hidden), "v": (kv, hidden)}
        for name, shape in {**attention, "o": (hidden, hidden)}.items():
            shapes[f"{at}self_attn.{name}_proj.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (hidden,)
        if family.has_experts:
            shapes[f"{at}block_sparse_moe.gate.weight"] = (EXPERTS, hidden)
            for expert in range(EXPERTS):
                own = f"{at}block_sparse_moe.experts.{expert}."
                shapes[f"{own}w1.weight"] = shapes[f"{own}w3.weight"] = (inner, hidden)
                shapes[f"{own}w2.weight"] = (hidden, inner)
        else:
            shapes[f"{at}mlp.gate_proj.weight"] = shapes[f"{at}mlp.up_proj.weight"] = (
                inner,
                hidden,
            )
            shapes[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        for name, size in family.vectors.items():
            shapes[name if name.startswith("model.") else f"{at}{name}"] = (size,)
    tensors = {
        name: torch.randn(shape) * 0.12 if len(shape) > 1 else 1 + 0.5 * torch.randn(shape)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return tensors


#: Names of safetensors files, and those of GGUF files in their place.
_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers.": "blk.",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")},
}


def write_gguf(
    path: Path, arch: str, tensors: Mapping[str, Tensor], names: Mapping[str, str], **numbers: int
) -> None:
    """The model in a GGUF file, with further names and numbers of its architecture."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    for key, number in numbers.items():
        writer.add_uint32(f"{arch}.{key}", number)
    for name, tensor in tensors.items():
        for old, new in {**_GGUF, **names}.items():
            name = name.replace(old, new)
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class PlainLlama:
    """The parts of a Llama in float64: the truth of what families share with it."""

    def __init__(self, tensors: Mapping[str, Tensor], tokens: int) -> None:
        self.weights = {name: tensor.double() for name, tensor in tensors.items()}
        exponents = torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM
        angles = torch.arange(tokens)[:, None] * CONFIG["rope_theta"] ** -exponents
        self._cos = torch.cat((angles, angles), 1).cos()
        self._sin = torch.cat((angles, angles), 1).sin()

    def product(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]).rsqrt()
        return x * scale * self.weights[f"{name}.weight"]

    def mlp(
        self, x: Tensor, gate: str, up: str, down: str, *, gain: Tensor | float = 1.0
    ) -> Tensor:
        inner = F.silu(self.product(x, gate)) * self.product(x, up)
        return self.product(inner * gain, down)

    def attend(self, x: Tensor, at: str) -> Tensor:
        """What each head attends to (H, T, D) in the layer whose names begin with `at`."""
        q, k, v = (self._heads(x, f"{at}self_attn.{name}_proj") for name in "qkv")
        q, k = self._rotated(q), self._rotated(k)
        k, v = (each.repeat_interleave(2, 0) for each in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def _heads(self, x: Tensor, name: str) -> Tensor:
        return self.product(x, name).view(len(x), -1, HEAD_DIM).transpose(0, 1)

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self._cos + torch.cat((-second, first), -1) * self._sin


def true_logits(
    family: MadeUp, tensors: Mapping[str, Tensor], ids: list[int], *, plain: bool = False
) -> Tensor:
    """Logits (T, V) in float64; with `plain` those of the model without what is made up."""
    llama = PlainLlama(tensors, len(ids))

    def experts(x: Tensor, at: str, temperature: float) -> Tensor:
        scores = (llama.product(x, f"{at}gate") / temperature).softmax(-1)
        best, chosen = scores.topk(CHOSEN)
        best = best / best.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for token in range(len(x)):
            for weight, expert in zip(best[token], chosen[token].tolist(), strict=True):
                own = f"{at}experts.{expert}."
                out[token] += weight * llama.mlp(x[token], f"{own}w1", f"{own}w3", f"{own}w2")
        return out

    x = llama.weights["model.embed_tokens.weight"][ids]
    if family is MYTH and not plain:
        x = x * llama.weights["model.embedding_gain"]
    for index in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{index}."
        out = llama.attend(llama.norm(x, f"{at}input_layernorm"), at)
        if family is FABLE and not plain:
            out = out * llama.weights[f"{at}self_attn.head_gain"][:, None, None]
        x = x + llama.product(out.transpose(0, 1).flatten(1), f"{at}self_attn.o_proj")
        y = llama.norm(x, f"{at}post_attention_layernorm")
        if family is SAGA:
            temperature = 1.0 if plain else family.config["router_temperatures"][index]
            x = x + experts(y, f"{at}block_sparse_moe.", temperature)
            continue
        gain = llama.weights[f"{at}mlp.inner_gain"] if family is ODE and not plain else 1.0
        names = (f"{at}mlp.{n}_proj" for n in ("gate", "up", "down"))
        added = llama.mlp(y, *names, gain=gain)
        is_normed = family is GRIMM and not plain
        x = x + (llama.norm(added, f"{at}mlp.second_norm") if is_normed else added)
    return llama.product(llama.norm(x, "model.norm"), "lm_head")
