"""Opens a model: from its name to the headers of its files, and to a local copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from mrs.errors import NotReadable, UsageError
from mrs.request import ModelSource
from mrs.source.checkpoint import Checkpoint, TensorInfo, WeightsFile
from mrs.source.folder import Folder, Progress, read_json
from mrs.source.headers import gguf_tensors, joined, module_tensors, safetensors_tensors
from mrs.source.locate import DEMOS, locate, locate_tokenizer
from mrs.source.sentence_files import (
    SentenceFiles,
    read_sentence_files,
    sentence_side_files,
    sentence_weights,
)
from mrs.source.suggested_sampling import OF_SPEECH, unused_settings
from mrs.source.tokenizer_files import tokenizer_files
from mrs.source.weights_files import (
    gguf_files,
    gguf_models,
    gguf_projectors,
    safetensors_files,
)

Selector = Literal["plain", "vision-plain", "gguf"]

#: The keys in config.json of what a model sees or hears with.
TOWERS = frozenset({"vision_config", "audio_config", "thinker_config"})

#: Files other than weights and the tokenizer's that a run may read.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "model.safetensors.index.json",
)


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Read the headers of a model's files; no weights are read or downloaded.

    A downloaded model of the hub is opened in the cache. Raises NotReadable for missing or
    malformed files, Unsupported for pickled weights, newer formats and big-endian files, and
    UsageError if the user has to name a GGUF file.
    """
    located, folder = locate(source)
    try:
        checkpoint = _opened(located, folder)
    except NotReadable:
        if not folder.forget_headers():
            raise
        located, folder = locate(source)
        checkpoint = _opened(located, folder)
    folder.keep_headers()
    return checkpoint


def _opened(source: ModelSource, folder: Folder) -> Checkpoint:
    tokenizer_folder = locate_tokenizer(source)
    folder = folder.cached(wanted_files(source, folder))
    if tokenizer_folder is not None:
        tokenizer_folder = tokenizer_folder.cached(side_files(tokenizer_folder))
    return read_checkpoint(source, folder, tokenizer_folder)


def fetch(model: ModelSource | Checkpoint, progress: Progress | None = None) -> Checkpoint:
    """The model with all its files on this machine; missing ones are downloaded.

    An interrupted download is resumed. Raises as `open_checkpoint` does.
    """
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
    if checkpoint.is_local:
        return checkpoint
    from mrs.source.download import download

    source, tokenizer_folder = checkpoint.source, None
    if source.tokenizer_model_id is not None and checkpoint.tokenizer_folder is not None:
        wanted = side_files(checkpoint.tokenizer_folder)
        tokenizer_folder = download(checkpoint.tokenizer_folder, wanted, None)
    wanted = wanted_files(source, checkpoint.folder)
    folder = download(checkpoint.folder, wanted, progress)
    complete = read_checkpoint(source, folder, tokenizer_folder)
    if not checkpoint.adapters:
        return complete
    from mrs.source.adapter_files import fetch_adapter, with_adapter_files

    return with_adapter_files(complete, [fetch_adapter(a, progress) for a in checkpoint.adapters])


def find_selector(source: ModelSource) -> Selector:
    """The selector for a model, by its files; `source.container` is ignored."""
    located, folder = locate(replace(source, container="safetensors"))
    if located.filenames:
        # Only GGUF files are named one by one; spaces in a name have split it.
        if any(".gguf" in name for name in located.filenames):
            return "gguf"
        quantizations = [name for name in located.filenames if "." not in name]
        if quantizations and gguf_models(folder):
            return "gguf"
        hint = "quantize it with --isq" if quantizations else "safetensors files need no -f"
        raise UsageError(f"-f {' '.join(located.filenames)} is not a .gguf file", hint=hint)
    config = read_json(folder, "config.json")
    has_weights = any(name.endswith(".safetensors") for name in folder.names())
    if gguf_models(folder) and (config is None or not has_weights):
        return "gguf"
    return "vision-plain" if config and not TOWERS.isdisjoint(config) else "plain"


def find_projector(
    source: ModelSource, fits: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
) -> str | None:
    """The mmproj file in the folder of a GGUF model whose metadata `fits` that of the model."""
    source, folder = locate(source)
    projectors = gguf_projectors(folder)
    if not projectors:
        return None
    model, _ = gguf_tensors(folder, gguf_files(folder, source.filenames)[:1])
    headers = ((name, gguf_tensors(folder, (name,))[0]) for name in projectors)
    return next((name for name, metadata in headers if fits(metadata, model)), None)


def read_checkpoint(
    source: ModelSource, folder: Folder, tokenizer_folder: Folder | None
) -> Checkpoint:
    """The headers of the model in `folder`."""
    notes = folder.notes
    if source.container == "gguf":
        files = gguf_files(folder, source.filenames)
        config, tensors = gguf_tensors(folder, files)
        images: Mapping[str, Any] = {}
        videos: Mapping[str, Any] = {}
        sentence = SentenceFiles()
        if projector := _projector(source, folder):
            images, more = gguf_tensors(folder, projector)
            tensors, files = joined(tensors, more, folder), files + projector
    else:
        files, config, tensors = _weights(source, folder)
        notes += _other_models(folder)
        images = _media_config(
            folder, "preprocessor_config.json", "image_processor", "feature_extractor"
        )
        videos = _media_config(folder, "video_preprocessor_config.json", "video_processor")
        sentence, more_files = read_sentence_files(folder), sentence_weights(folder)
        if more_files:
            tensors = joined(tensors, module_tensors(folder, more_files), folder)
        files += more_files
        tokenizer_folder = tokenizer_folder or folder
    generation_config = _generation_config(source, folder)
    notes += _unused_settings(source, config, generation_config)
    return Checkpoint(
        source=source,
        config=config,
        generation_config=generation_config,
        tensors=tensors,
        files=tuple(WeightsFile(name, folder.open(name).size_bytes) for name in files),
        folder=folder,
        tokenizer_folder=tokenizer_folder,
        notes=notes,
        image_config=images,
        video_config=videos,
        sentence=sentence,
    )


def _unused_settings(
    source: ModelSource, config: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> tuple[str, ...]:
    """The remark that names the sampling settings of the model's files that are not used."""
    is_gguf = source.container == "gguf"
    unused = unused_settings(source.container, config if is_gguf else generation_config)
    if config.get("model_type") == "whisper":
        unused = [name for name in unused if name not in OF_SPEECH]
    if not unused:
        return ()
    where = "the GGUF file" if is_gguf else "generation_config.json"
    return (f"settings of {where} that are not used: {', '.join(unused)}",)


def _other_models(folder: Folder) -> tuple[str, ...]:
    """The remark that the safetensors files are taken, and how to take the GGUF files there."""
    names = gguf_models(folder)
    if not names or folder.label in DEMOS:
        return ()
    others = names[0] if len(names) == 1 else f"one of {len(names)} GGUF files"
    return (f"the safetensors files are taken; to take {others} instead, name it with -f",)


def wanted_files(source: ModelSource, folder: Folder) -> tuple[str, ...]:
    """All files of a model that a run reads."""
    if source.container == "gguf":
        return gguf_files(folder, source.filenames) + _projector(source, folder)
    weights = _weights_files(source, folder) + sentence_weights(folder)
    return weights + side_files(folder) + sentence_side_files(folder)


def _weights_files(source: ModelSource, folder: Folder) -> tuple[str, ...]:
    if not source.uqff:
        return safetensors_files(folder)[0]
    from mrs.source.uqff_files import REPORT, uqff_files

    return uqff_files(folder, source.uqff) + ((REPORT,) if folder.has(REPORT) else ())


def _weights(
    source: ModelSource, folder: Folder
) -> tuple[tuple[str, ...], Mapping[str, Any], dict[str, TensorInfo]]:
    """The files of a model in safetensors or UQFF format, its config, and its tensors."""
    if not source.uqff:
        files, weight_map = safetensors_files(folder)
        return files, _config(folder), safetensors_tensors(folder, files, weight_map)
    from mrs.source.uqff_files import uqff_files
    from mrs.source.uqff_tensors import uqff_tensors

    files = uqff_files(folder, source.uqff)
    config = {**_config(folder), "quantization_config": {"quant_method": "uqff"}}
    return files, config, uqff_tensors(folder, files)


def side_files(folder: Folder) -> tuple[str, ...]:
    """The files other than weights that a run reads."""
    return (*(name for name in SIDE_FILES if folder.has(name)), *tokenizer_files(folder))


def _generation_config(source: ModelSource, folder: Folder) -> Mapping[str, Any]:
    if source.container == "gguf":
        return {}
    return read_json(folder, "generation_config.json") or {}


def _projector(source: ModelSource, folder: Folder) -> tuple[str, ...]:
    """The projector's file, if the source names one."""
    if source.mmproj is None:
        return ()
    if not folder.has(source.mmproj):
        raise NotReadable(
            f"no file {source.mmproj}",
            where=folder.label,
            hint="--mmproj takes the name of a file in the model's folder",
        )
    return (source.mmproj,)


def _media_config(folder: Folder, file: str, *part_names: str) -> Mapping[str, Any]:
    """A processor's settings; newer checkpoints have them as a part of processor_config.json.

    It is the first that there is of the parts that are named.
    """
    settings = read_json(folder, file)
    if settings is not None:
        return settings
    parts = read_json(folder, "processor_config.json") or {}
    found = (parts[name] for name in part_names if isinstance(parts.get(name), Mapping))
    return next(found, {})


def _config(folder: Folder) -> Mapping[str, Any]:
    config = read_json(folder, "config.json")
    if config is None:
        raise NotReadable("no config.json", where=folder.label, hint="is this a model's folder?")
    return config
