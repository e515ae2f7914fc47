"""The files of a LoRA adapter in PEFT's form: a config and the headers of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.architecture.adapters.adapter_headers import adapter_tensor
from mrs.errors import NotReadable, Unsupported
from mrs.request import AdapterRequest, ModelSource
from mrs.source.checkpoint import AdapterFiles, Checkpoint, WeightsFile
from mrs.source.folder import Folder, Progress, read_json
from mrs.source.headers import safetensors_tensors
from mrs.source.locate import locate

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def open_adapter(request: AdapterRequest, source: ModelSource) -> AdapterFiles:
    """Read the headers of an adapter, from the hub with the token and cache of `source`.

    Raises NotReadable for missing or malformed files, Unsupported for pickled weights and for
    adapters of other kinds.
    """
    adapter_source = ModelSource(
        request.model_id,
        "safetensors",
        revision=request.revision,
        token_source=source.token_source,
        cache_path=source.cache_path,
        prefers_hub=source.prefers_hub,
    )
    located, folder = locate(adapter_source)
    if located.filenames:
        raise Unsupported(
            "an adapter in a GGUF file is not supported",
            where=request.model_id,
            hint=f"give the folder with {CONFIG} that it was made from",
        )
    files = _read(request, folder.cached((CONFIG, WEIGHTS)))
    folder.keep_headers()
    return files


def fetch_adapter(files: AdapterFiles, progress: Progress | None = None) -> AdapterFiles:
    """The same adapter on this machine; it is downloaded if it is not."""
    if files.folder.path is not None:
        return files
    from mrs.source.download import download

    return _read(files.request, download(files.folder, (CONFIG, WEIGHTS), progress))


def with_adapter_files(checkpoint: Checkpoint, adapters: Sequence[AdapterFiles]) -> Checkpoint:
    """A checkpoint that has the tensors of these adapters as well, under `adapter_tensor` names."""
    tensors = dict(checkpoint.tensors)
    for index, adapter in enumerate(adapters):
        for name, info in adapter.tensors.items():
            renamed = adapter_tensor(index, name)
            tensors[renamed] = info._replace(name=renamed, file=adapter.path)
    files = tuple(WeightsFile(each.path, each.file.size_bytes) for each in adapters)
    return replace(
        checkpoint,
        tensors=tensors,
        files=(*checkpoint.files, *files),
        adapters=tuple(adapters),
    )


def _read(request: AdapterRequest, folder: Folder) -> AdapterFiles:
    where = folder.label
    if folder.has("xlora_config.json"):
        raise Unsupported(
            "X-LoRA is not supported",
            where=where,
            hint="give one of the adapters that it mixes",
        )
    config = read_json(folder, CONFIG)
    if config is None:
        raise NotReadable(f"no {CONFIG}", where=where, hint="is this a folder of a PEFT adapter?")
    if not folder.has(WEIGHTS):
        if folder.has("adapter_model.bin"):
            raise Unsupported(
                "only pickled weights, which could execute code: adapter_model.bin",
                where=where,
                hint="save the adapter with peft's save_pretrained, which writes safetensors",
            )
        raise NotReadable(f"no {WEIGHTS}", where=where, hint="the adapter is incomplete")
    tensors = safetensors_tensors(folder, (WEIGHTS,), {})
    file = WeightsFile(WEIGHTS, folder.open(WEIGHTS).size_bytes)
    return AdapterFiles(request, config, tensors, file, folder)
