"""Find the family of a checkpoint that sees, and describe both of its parts."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from mrs.architecture.binding import Parameter
from mrs.architecture.config import Config
from mrs.architecture.family import Family, Names
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_vision_parameters
from mrs.architecture.registry import family_by_name
from mrs.architecture.tensor_names import SAFETENSORS, TRANSPOSED
from mrs.architecture.vision.image_layouts import limited
from mrs.architecture.vision.text_defaults import LEFT_OUT
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.errors import NotReadable, Unsupported


@cache
def vision_families() -> dict[str, VisionFamily]:
    """Every family that sees by its name: one module of this package each, with a `FAMILY`."""
    package = import_module("mrs.families.vision")
    modules = (
        import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    )
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in sorted(found, key=lambda f: f.name)}


def find_vision_family(name: str) -> VisionFamily | None:
    """The family called `name` in a config or by `--arch`, if there is one."""
    wanted = name.lower().replace("-", "_")
    families = vision_families().values()
    return next((f for f in families if wanted in (f.name, *f.aliases)), None)


def vision_family(name: str, where: str) -> VisionFamily:
    """The family called `name` in a config or by `--arch`; Unsupported if there is none."""
    family = find_vision_family(name)
    if family is None:
        raise Unsupported(
            f"the architecture {name!r} is not known to see",
            where=where,
            hint=f"known are {', '.join(vision_families())}; its text part may run as plain",
        )
    return family


@dataclass(frozen=True)
class TextPart:
    """The language model inside a checkpoint that sees."""

    family: Family
    config: Config
    names: Names


def text_of(family: VisionFamily, model: Config, tensors: Collection[str]) -> TextPart:
    """Its family, its config, and where its tensors are.

    Whether its head is tied is said in either of two configs, and by the tensors for certain.
    """
    values = model.values.get("text_config")
    values = values if isinstance(values, Mapping) else model.values
    kind = Config(values, model.where).text("model_type", family.text)
    text = family_by_name(family.text_types.get(kind, kind))
    tied = f"{family.head}.weight" not in tensors
    quantization = model.values.get("quantization_config")
    given = {"quantization_config": quantization, **values, "tie_word_embeddings": tied}
    own = {**SAFETENSORS, **text.safetensors, **family.text_names}
    renamed = {slot: _renamed(name, family) for slot, name in own.items()}
    names = _spelled(renamed, family, tensors)
    defaults = {**LEFT_OUT.get(text.name, {}), **text.defaults, **family.text_defaults}
    return TextPart(text, Config({**defaults, **given}, model.where), names)


def with_longest_edge(spec: ModelSpec, edge: int) -> ModelSpec:
    """The model, if it sees, for pictures of which no edge is longer than `edge`.

    UsageError where that changes nothing.
    """
    if spec.vision is None:
        return spec
    layout = limited(spec.vision.layout, edge)
    return replace(spec, vision=replace(spec.vision, layout=layout))


def vision_tensor_prefixes(family: VisionFamily, tensors: Collection[str]) -> tuple[str, ...]:
    """What the names of tensors start with that are for seeing alone."""
    modules = {
        slot: name.removesuffix(TRANSPOSED).partition("{")[0]
        for slot, name in family.names.items()
        if not slot.startswith(("mixer.", "ffn."))
    }
    return tuple(_spelled(modules, family, tensors).values())


def _renamed(name: str, family: VisionFamily) -> str:
    if name == "lm_head":
        return family.head
    return family.text_start + name.removeprefix("model.") if name.startswith("model.") else name


def _spelled(names: Names, family: VisionFamily, tensors: Collection[str]) -> Names:
    """The names as these files spell them."""
    spellings = {
        old: new
        for old, new in family.spellings.items()
        if not any(tensor.startswith(old) for tensor in tensors)
    }
    found = dict(names)
    for slot, name in names.items():
        for old, new in spellings.items():
            if name.startswith(old):
                found[slot] = new + name.removeprefix(old)
    return found


def see(
    family: VisionFamily,
    model: Config,
    images: Mapping[str, Any],
    text: ModelSpec,
    tensors: Collection[str],
) -> tuple[ModelSpec, list[Parameter]]:
    """The text model's spec with what sees for it, and the parameters of that.

    `images` is preprocessor_config.json.
    """
    tower = model.values.get(family.tower_key)
    if not isinstance(tower, Mapping):
        raise NotReadable(
            f"the configuration has no {family.tower_key!r}",
            where=model.where,
            hint="a model of text alone runs as plain",
        )
    configs = VisionConfigs(
        model=model,
        tower=Config({**family.tower_defaults, **tower}, model.where),
        images=Config({**family.image_defaults, **images}, model.where),
    )
    vision: Vision = family.read(configs, text)
    parameters = list_vision_parameters(
        vision,
        text.hidden_size,
        _spelled(family.names, family, tensors),
        tensors,
        changes={"offset_norm": "plus_one"},
    )
    return replace(text, vision=vision), parameters
