"""Describe the language model in a checkpoint of safetensors files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.description import TOWER_KEYS, CheckpointHeaders, ReadModel, SentenceFilesLike
from mrs.architecture.draft_head import HeadModel, read_head
from mrs.architecture.family import Family
from mrs.architecture.family_registry import family_by_name
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.parameters import list_parameters
from mrs.architecture.pooler import Pooler
from mrs.architecture.pooler_config import (
    NamedPooler,
    most_tokens,
    ranks_by_tokens,
    read_pooler,
    read_score,
    sized,
)
from mrs.architecture.quantization_methods import read_quantization
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.config.config import Config
from mrs.config.config_unused import unused_config_keys
from mrs.errors import NotReadable
from mrs.layers.slots import WeightKind
from mrs.weights.binding import Parameter, WeightTransform

#: Prefix of the language model's tensor names in multimodal checkpoints.
_LANGUAGE_MODEL = "language_model."
_MODEL = "model."


#: Transforms that safetensors files need; GGUF files store the values as they are used.
_TRANSFORMS: dict[WeightKind, WeightTransform] = {"decay": "negative_exp"}


def has_tower(checkpoint: CheckpointHeaders) -> bool:
    """Whether the config of the language model is also that of a vision tower."""
    values, _ = text_config(checkpoint.config, checkpoint.tensors)
    return any(key in values for key in TOWER_KEYS)


def text_family(checkpoint: CheckpointHeaders, arch: str | None) -> tuple[Family, Config]:
    """The family of the language model, and its config with the family's defaults."""
    values, _ = text_config(checkpoint.config, checkpoint.tensors)
    values, _, _ = _inner_model(values, checkpoint.tensors)
    return _family_and_config(values, arch, checkpoint)


def _family_and_config(
    values: Mapping[str, Any], arch: str | None, checkpoint: CheckpointHeaders
) -> tuple[Family, Config]:
    where = checkpoint.model_id
    family = family_by_name(arch or model_type(values, where))
    correction = {**SAFETENSORS, **family.safetensors}["ffn.router.correction"]
    # As GGUF files say it: some models of a family have none.
    has_correction = any(name.endswith(correction) for name in checkpoint.tensors)
    found = {"has_score_correction": has_correction}
    return family, Config({**family.defaults, **found, **values}, where)


def read_safetensors(checkpoint: CheckpointHeaders, arch: str | None) -> ReadModel:
    values, prefix = text_config(checkpoint.config, checkpoint.tensors)
    values, rename, others = _inner_model(values, checkpoint.tensors)
    family, config = _family_and_config(values, arch, checkpoint)
    full, more_names = with_pooler(family.read(config), family, config, checkpoint.sentence)
    spec = full.without_cross_attention()
    renamed = {slot: rename(name) for slot, name in {**SAFETENSORS, **family.safetensors}.items()}
    names: Mapping[str, str] = {
        **_without_wrapper(renamed, prefix, checkpoint.tensors),
        **more_names,
    }
    if spec.tied_head:
        names = _embedding_of_head(names, prefix, checkpoint.tensors)
    parameters = text_parameters(checkpoint, family, config, spec, names, prefix)
    removed = set(range(len(full.layers))) - set(spec.file_layer_indices)
    unused = (names["layer"].format(layer=index) for index in sorted(removed))
    return ReadModel(
        spec,
        parameters,
        prefix,
        ignored=(*family.ignored, *unused, *others),
        unread=(*family.unread, *spec.unused_names(names)),
        warnings=key_warnings(config, values),
        head=text_head(checkpoint, family, config, spec, names, prefix),
    )


def key_warnings(config: Config, given: Collection[str]) -> tuple[str, ...]:
    """The warning that names the keys of config.json that are not used, if there are any."""
    unused = unused_config_keys(config, given)
    return (f"keys of config.json that are not used: {', '.join(unused)}",) if unused else ()


def with_pooler(
    spec: ModelSpec, family: Family, config: Config, files: SentenceFilesLike
) -> tuple[ModelSpec, Mapping[str, str]]:
    """The spec with its pooler, if it has one, and the names of the pooler's tensors.

    An encoder without any files of sentence-transformers takes the mean of its hidden states.
    """
    tokens = spec.context_tokens
    if _is_classifier(config):
        named = (family.classifier or read_score)(config)
        spec = _with_ranking(spec, files, config)
    elif ranks_by_tokens(files):
        return _with_ranking(spec, files, config), {}
    elif files.modules:
        named = read_pooler(files, _of_states(family, config), spec.hidden_size, config.where)
        tokens = most_tokens(files, spec, config.where)
    elif spec.attends_both_ways:
        named = NamedPooler(_of_states(family, config), {})
    else:
        return spec, {}
    pooler = sized(named.pooler, spec.hidden_size, config)
    headless = replace(spec, tied_head=False, head_bias=False)
    return replace(headless, pooler=pooler, context_tokens=tokens), named.names


def _of_states(family: Family, config: Config) -> Pooler:
    """The mean of the states, which may have been mapped, with the length 1."""
    return Pooler() if family.states is None else family.states(config)


def _with_ranking(spec: ModelSpec, files: SentenceFilesLike, config: Config) -> ModelSpec:
    from mrs.architecture.pooler_config import read_ranking

    return replace(spec, ranking=read_ranking(files, spec.vocab_size, config.where))


def _is_classifier(config: Config) -> bool:
    names = config.sequence("architectures", ())
    return any(str(name).endswith("ForSequenceClassification") for name in names)


def _without_wrapper(
    names: Mapping[str, str], prefix: str, tensors: Collection[str]
) -> Mapping[str, str]:
    """The names of tensors in a file of the inner model alone (`embed_tokens`), if it is one."""
    wrapper = names["embedding"].partition(".")[0] + "."
    if f"{prefix}{names['embedding'].removeprefix(wrapper)}.weight" not in tensors:
        return names
    return {slot: name.removeprefix(wrapper) for slot, name in names.items()}


def _embedding_of_head(
    names: Mapping[str, str], prefix: str, tensors: Collection[str]
) -> Mapping[str, str]:
    """The names of a tied model, of which some files have the head and no embedding."""
    embedding, head = (f"{prefix}{names[slot]}.weight" for slot in ("embedding", "head"))
    is_alone = embedding not in tensors and head in tensors
    return {**names, "embedding": names["head"]} if is_alone else names


def text_parameters(
    checkpoint: CheckpointHeaders,
    family: Family,
    config: Config,
    spec: ModelSpec,
    names: Mapping[str, str],
    prefix: str = "",
) -> list[Parameter]:
    """The parameters of a text model in safetensors files."""
    transforms = dict(_TRANSFORMS)
    if family.norm_plus_one:
        transforms["norm"] = "plus_one"
    if family.norm_plus_one == "all":
        transforms["final_norm"] = "plus_one"
    quantization = read_quantization(config)
    if quantization is not None and quantization.stacks_experts:
        names = with_stacked_experts(names, checkpoint.tensors)
    return list_parameters(
        spec,
        names,
        checkpoint.tensors,
        tensor_prefix=prefix,
        transforms=transforms,
        quantization=quantization,
    )


def text_head(
    checkpoint: CheckpointHeaders,
    family: Family,
    config: Config,
    spec: ModelSpec,
    names: Mapping[str, str],
    prefix: str = "",
) -> HeadModel | None:
    """The draft head of a text model in safetensors files, if they have one."""

    def bind(head: ModelSpec, own: Mapping[str, str]) -> list[Parameter]:
        return text_parameters(checkpoint, family, config, head, own, prefix)

    files = family.head
    if files is None:
        return None
    return read_head(files, config, spec, names, files.safetensors, checkpoint.tensors, bind)


def _inner_model(
    config: Mapping[str, Any], tensors: Collection[str]
) -> tuple[Mapping[str, Any], Callable[[str], str], set[str]]:
    """(config, new spelling of tensor names, prefixes of other modules) of the language model.

    Files of multimodal models may have it under `model.language_model`, with the head outside.
    """
    inside = f"{_MODEL}{_LANGUAGE_MODEL}"
    if not any(name.startswith(inside) for name in tensors):
        return config, str, set()
    modules = {f"{_MODEL}{name.split('.')[1]}." for name in tensors if name.startswith(_MODEL)}
    text = config.get("text_config")
    if isinstance(text, Mapping):
        tied = _is_tied(config, text, tensors, "lm_head.")
        quantization = config.get("quantization_config")
        config = {"quantization_config": quantization, **text, "tie_word_embeddings": tied}

    def rename(name: str) -> str:
        return inside + name.removeprefix(_MODEL) if name.startswith(_MODEL) else name

    return config, rename, modules - {inside}


def _is_tied(
    config: Mapping[str, Any], text: Mapping[str, Any], tensors: Collection[str], head: str
) -> bool:
    """Whether head and embedding are one weight, of which some files have the head alone.

    Either of the two configs may say it; without a head the tensors are certain.
    """
    if not any(name.startswith(head) for name in tensors):
        return True
    is_said = bool(text.get("tie_word_embeddings") or config.get("tie_word_embeddings"))
    return is_said and not any(".embed_tokens." in name for name in tensors)


def model_type(config: Mapping[str, Any], where: str) -> str:
    name = config.get("model_type")
    if not isinstance(name, str):
        raise NotReadable(
            "the configuration lacks 'model_type'",
            where=where,
            hint="give the architecture with --arch",
        )
    return name


def text_config(
    config: Mapping[str, Any], tensors: Collection[str]
) -> tuple[Mapping[str, Any], str]:
    """(config, prefix of tensor names) of the language model; (`config`, "") for a text model."""
    text = config.get("text_config")
    prefix = _LANGUAGE_MODEL
    if not isinstance(text, Mapping) or not any(name.startswith(prefix) for name in tensors):
        return config, ""
    tied = _is_tied(config, text, tensors, f"{prefix}lm_head.")
    quantization = {key: config.get(key) for key in ("quantization_config", "quantization")}
    return {**quantization, **text, "tie_word_embeddings": tied}, prefix


_EXPERT = ".{expert}"
_SLOTS = "ffn.experts.{expert}."
_MATRICES = ("gate", "up", "down")


def with_stacked_experts(names: Mapping[str, str], tensors: Collection[str]) -> Mapping[str, str]:
    """A family's names, with those of UQFF for experts if the file has any of these tensors."""
    usual = names.get(f"{_SLOTS}gate", "")
    module = usual.partition(_EXPERT)[0]
    if not module or not any(name.endswith(f"{module}.gate_proj.weight") for name in tensors):
        return names
    others = {slot: name for slot, name in names.items() if not slot.startswith(_SLOTS)}
    return others | {f"{_SLOTS}{each}": f"{module}.{each}_proj" for each in _MATRICES}
