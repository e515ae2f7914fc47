"""Write a model to a folder in UQFF: `mrs quantize`, and `--write-uqff` before a model runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrs.errors import Unsupported, UsageError
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.formats import FORMATS
from mrs.process.files import PUBLIC, Staging, replace_file
from mrs.quantization.isq import isq_name, parse_isq
from mrs.quantization.storage import StorageRules, isq_names, isq_rules, quantization
from mrs.source.find import SIDE_FILES
from mrs.source.folder import LocalFolder, read_json
from mrs.source.reader import expanded
from mrs.source.tokenizer_files import TOKENIZER_JSON, tokenizer_files
from mrs.source.uqff_files import REPORT, RESIDUAL, SUFFIX, Written
from mrs.source.uqff_tensors import VERSION
from mrs.source.weights_files import INDEX

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.engine.column_importance import Loader
    from mrs.load.uqff_layers import UqffContents, UqffLayer
    from mrs.request import RunRequest
    from mrs.source.checkpoint import Checkpoint
    from mrs.weights.binding import Parameter

_CONFIG = "config.json"
#: What quantization of the source's files the config says; the new files have none of it.
_QUANTIZATION = ("quantization_config", "quantization")


def quantize(
    request: RunRequest, on_progress: OnProgress | None = None, loader: Loader | None = None
) -> tuple[Path, ...]:
    """Write the model of a request to its `write_uqff`; returns the paths of the shards.

    A `loader` of the request is needed if it asks for the importance of columns.
    """
    from mrs.architecture.describe import describe
    from mrs.engine.column_importance import column_importance
    from mrs.source.find import fetch, open_checkpoint

    def report(progress: LoadProgress) -> None:
        if on_progress is not None:
            on_progress(progress)

    checkpoint = open_checkpoint(request.source)
    _check(request, checkpoint)
    description = describe(checkpoint, request.arch)
    _contents(checkpoint, description.parameters, request)  # may refuse: before the download
    checkpoint = fetch(checkpoint, lambda done, total: report(LoadProgress(DISK, done, total)))
    importance: Mapping[str, Tensor] = {}
    if loader is not None:
        loader.planner.checkpoint = checkpoint
        importance = column_importance(loader, report)
    return write_uqff(checkpoint, description.parameters, request, report, importance)


def write_if_asked(loader: Loader, report: OnProgress) -> None:
    """Write the model of a request with `write_uqff`, whose files are on this machine."""
    if loader.request.write_uqff is not None:
        from mrs.engine.column_importance import column_importance

        parameters = loader.planner.description.parameters
        importance = column_importance(loader, report)
        write_uqff(loader.planner.checkpoint, parameters, loader.request, report, importance)


def write_uqff(
    checkpoint: Checkpoint,
    parameters: Sequence[Parameter],
    request: RunRequest,
    report: OnProgress,
    importance: Mapping[str, Tensor],
) -> tuple[Path, ...]:
    """Write a model on this machine, quantized as the request says; returns the shards' paths.

    `write_uqff` of the request is a folder, or a file `STEM.uqff` whose shards are `STEM-0.uqff`
    and so on. An older set of these names is replaced as a whole: its files stay until all new ones
    are on the disk. Memory is needed for some rows at a time. Raises UsageError,
    Unsupported and NotReadable.
    """
    from mrs.load.uqff_writer import (
        copied_tensor,
        layer_tensors,
        shards,
        unwritable,
        version_tensors,
        write_tensors,
    )
    from mrs.source.weights import Weights

    _check(request, checkpoint)
    target = expanded(request.write_uqff or "")
    is_file = target.suffix == SUFFIX
    folder = target.parent if is_file else target
    quant = isq_name(parse_isq(request.isq).name) if request.isq else "mixed"
    stem = target.stem if is_file else quant
    _check_folder(folder, checkpoint)
    contents = _contents(checkpoint, parameters, request)
    with Weights(checkpoint) as files:
        groups = [version_tensors()]
        groups += [layer_tensors(layer, files, importance) for layer in contents.layers]
        groups += [[copied_tensor(info, files)] for info in contents.biases]
        residual = [copied_tensor(info, files) for info in contents.residual]
        sets = shards(groups)
        total_bytes = sum(each.size_bytes for group in (*sets, residual) for each in group)
        progress = _Progress(report, total_bytes)
        names = [f"{stem}-{index}{SUFFIX}" for index in range(len(sets))]
        # The residual file comes first: it belongs to no older shards, which are refused with it.
        parts = {RESIDUAL: residual, **dict(zip(names, sets, strict=True))}
        try:
            with Staging(folder, stem) as staging:
                written = {
                    name: write_tensors(staging.path(name), tensors, progress.add)
                    for name, tensors in parts.items()
                }
                texts = _write_texts(staging, checkpoint)
                others, replaced = _other_outputs(folder, names)
                if replaced:  # from here on, the older set is refused
                    _write_report(folder, others)
                staging.publish([*written, *texts])
                output = _output(quant, names, contents.layers) | {"files": _manifest(written)}
                _write_report(folder, [*others, output])
                for name in _shards_of(replaced) - _shards_of(others) - {*names}:
                    (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
    return tuple(folder / name for name in names)


def check_isq(isq: str) -> None:
    """Raise UsageError or Unsupported if this value of `--isq` is not written to UQFF files."""
    if parse_isq(isq).ggml_type is None:
        raise Unsupported(
            f"--isq {isq} is not written to UQFF files yet",
            hint="use a type that GGUF has, too, such as q4k, q8_0 or mxfp4",
        )


def _contents(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], request: RunRequest
) -> UqffContents:
    """The layers of the files and the rest. Raises UsageError and Unsupported."""
    from mrs.load.uqff_layers import uqff_contents

    isq, topology = quantization(request, parameters)
    rules = StorageRules(FORMATS["F32"], isq, topology=isq_rules(topology))
    return uqff_contents(checkpoint, parameters, rules)


class _Progress:
    def __init__(self, report: OnProgress, total_bytes: int) -> None:
        self._report, self._total_bytes, self._done_bytes = report, total_bytes, 0
        report(LoadProgress(DISK, 0, total_bytes))

    def add(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._report(LoadProgress(DISK, self._done_bytes, self._total_bytes))


def _check(request: RunRequest, checkpoint: Checkpoint) -> None:
    """Raises UsageError and Unsupported for what is not written."""
    if expanded(request.write_uqff or "").suffix == ".gguf":
        raise UsageError(
            "--write-uqff writes no GGUF file", hint="mrs quantize -o FILE.gguf writes one"
        )
    if checkpoint.container == "gguf" or checkpoint.source.uqff:
        raise Unsupported(
            "UQFF files are written from models in safetensors format",
            where=checkpoint.model_id,
            hint="name the model that these files were made from",
        )
    if request.vision is not None:
        raise Unsupported(
            "UQFF files of vision models are not written",
            hint="plain -m ID writes the language model",
        )
    if request.adapters:
        raise Unsupported(
            "UQFF files of models with adapters are not written",
            hint="merge the adapters with peft, and name the result",
        )
    rules = isq_rules(request.topology)
    if request.isq is None and rules is None:
        raise UsageError("UQFF files need a quantization", hint="add --isq, such as --isq q4k")
    for isq in isq_names(request.isq, rules):
        check_isq(isq)


def _check_folder(folder: Path, checkpoint: Checkpoint) -> None:
    """Raises UsageError if a folder has another model, whose files would be lost, and NotReadable
    for a damaged report."""
    read_json(LocalFolder(folder), REPORT)
    theirs = read_json(LocalFolder(folder), _CONFIG)
    if theirs is not None and theirs != _without_quantization(checkpoint.config):
        raise UsageError(
            "the folder has the files of another model",
            where=str(folder),
            hint="name an empty folder",
        )


def _write_texts(staging: Staging, checkpoint: Checkpoint) -> list[str]:
    """Config, tokenizer and the like, so that the folder is a whole model; returns their names."""
    config = json.dumps(_without_quantization(checkpoint.config), indent=2)
    texts = {_CONFIG: config.encode()}
    vocabulary = tokenizer_files(checkpoint.tokenizer_folder or checkpoint.folder)
    for name in dict.fromkeys((*SIDE_FILES, TOKENIZER_JSON, *vocabulary)):
        data = None if name in (_CONFIG, INDEX) else checkpoint.read_bytes(name)
        if data is not None:
            texts[name] = data
    for name, data in texts.items():
        replace_file(staging.path(name), [data], PUBLIC)
    return list(texts)


def _other_outputs(
    folder: Path, files: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The entries of the report that stay, and those whose files are replaced."""
    before = (read_json(LocalFolder(folder), REPORT) or {}).get("outputs")
    entries = (
        [each for each in before if isinstance(each, dict)] if isinstance(before, list) else []
    )
    replaced = [each for each in entries if _has_one_of(each.get("shards"), files)]
    return [each for each in entries if each not in replaced], replaced


def _shards_of(outputs: Sequence[Mapping[str, Any]]) -> set[str]:
    """The shards in entries of a report, which may say anything."""
    listed = [output.get("shards") for output in outputs]
    return {
        name
        for shards in listed
        if isinstance(shards, list)
        for name in shards
        if isinstance(name, str) and re.fullmatch(r"[^/\\]+-\d{1,5}\.uqff", name)
    }


def _write_report(folder: Path, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Replace the report, from which loaders know what belongs together."""
    report = {
        "schema": 1,
        "generated_by": {"tool": "mrs quantize"},
        "uqff_version": ".".join(map(str, VERSION)),
        "outputs": outputs,
    }
    replace_file(folder / REPORT, [json.dumps(report, indent=2).encode()], PUBLIC)


def _manifest(written: Mapping[str, Written]) -> dict[str, dict[str, Any]]:
    return {name: each._asdict() for name, each in written.items()}


def _output(quant: str, files: Sequence[str], layers: Sequence[UqffLayer]) -> dict[str, Any]:
    """The entry of one set of shards in the report."""
    details = [_details(layer, quant) for layer in layers]
    stored = [each["stored"] for each in details]
    fallbacks = [
        {
            "module": each["module"],
            "from": quant,
            "to": each["stored"],
            "shape": each["shape"],
            "reason": layer.reason,
        }
        for each, layer in zip(details, layers, strict=True)
        if layer.reason
    ]
    return {
        "quant": quant,
        "shards": list(files),
        "layers": len(layers),
        "actual_counts": {name: stored.count(name) for name in sorted(set(stored))},
        "fallback_count": len(fallbacks),
        "fallbacks": fallbacks,
        "layer_details": details,
    }


def _has_one_of(shards: object, files: Sequence[str]) -> bool:
    return isinstance(shards, list) and any(file in shards for file in files)


def _details(layer: UqffLayer, quant: str) -> dict[str, Any]:
    format = layer.format
    return {
        "module": layer.weight.removesuffix(".weight"),
        "default_target": quant,
        "stored": isq_name(format.name) if format.is_quantized else format.name.lower(),
        "shape": list(layer.shape),
    }


def _without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _QUANTIZATION}
