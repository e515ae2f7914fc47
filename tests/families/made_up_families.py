"""Families that nobody has published, built by the recipe in `mrs.families`.

Each needs a field that no spec has. The package is copied, and the copy changed as the recipe says:
a file of each family, the field, and what computes it. No fast path is touched.
`made_up_paths.py` says what they should compute.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import mrs


@dataclass(frozen=True)
class Edit:
    """In a file of the package, `new` goes where `old` is, once, after it."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class MadeUp:
    """A family: its file, and changes of the package. `owner` is the spec that has the field."""

    name: str
    field_name: str
    source: str
    edits: tuple[Edit, ...]
    owner: str = "Layer"


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
    owner="Attention",
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
    owner="Mlp",
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
    owner="ModelSpec",
)
MADE_UP = (FABLE, GRIMM, SAGA, ODE, MYTH)


def build_package(folder: Path, *, knows_shares: bool = False) -> None:
    """A copy of the package with all families in it.

    With `knows_shares` their fields are named among those that processes can share.
    """
    source = Path(mrs.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "native_cache")
    shutil.copytree(source, folder / "mrs", ignore=ignored)
    for family in MADE_UP:
        (folder / "mrs" / "families" / f"{family.name}.py").write_text(family.source)
    for edit in [
        *(edit for family in MADE_UP for edit in family.edits),
        *([_share()] * knows_shares),
    ]:
        file = folder / "mrs" / edit.file
        text = file.read_text()
        assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
        file.write_text(text.replace(edit.old, edit.old + edit.new))


def _share() -> Edit:
    """All fields are named among those that processes can share."""
    fields = ", ".join(f'{family.owner}="{family.field_name}"' for family in MADE_UP)
    known = 'SHARDABLE: Known = with_fields(SETTLED, FirstInput="width", Mlp="down_bias")\n'
    return Edit(
        "architecture/shardable.py", known, f"SHARDABLE = with_fields(SHARDABLE, {fields})\n"
    )
