"""`mrs cache`: lists and deletes downloaded models, and shows the size of the prefix cache."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mrs.devices.disk import layers_folder, layers_folders, model_folder
from mrs.errors import ExitCode, NotReadable, UsageError
from mrs.request import ModelSource
from mrs.source.address import is_path_like, parse_address
from mrs.source.cached import CachedModel, cached_models, runnable
from mrs.source.hub_settings import default_cache_path
from mrs.source.locate import DEMOS
from mrs.units import human_bytes
from mrs_cli.commands.presets import preset_lines
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import CacheFlags, OutputFlags
from mrs_cli.parsing.presets import preset_names
from mrs_cli.render.safe_text import json_text, printable, table


@dataclass(frozen=True)
class PrefixFiles:
    """The files of a prefix cache."""

    path: Path
    count: int
    size_bytes: int


def list_cache(environment: Environment, output: OutputFlags, flags: CacheFlags) -> ExitCode:
    """Prints the models in the hub cache that mrs can run, and the size of the prefix cache."""
    path = Path(flags.hf_cache_path or default_cache_path()).expanduser()
    models = [model for found in cached_models(path) if (model := runnable(found))]
    prefixes = _prefix_files(flags.prefix_cache_dir) if flags.prefix_cache_dir else None
    text = _json(path, models, prefixes) if output.json else _text(path, models, prefixes)
    environment.stdout.write(text + "\n")
    return ExitCode.DONE


def delete_model(
    environment: Environment, flags: CacheFlags, model_id: str, *, is_sure: bool
) -> ExitCode:
    """Deletes a model's layers on disk, and all its revisions in the hub cache.

    Asks unless `is_sure`.
    """
    cache = Path(flags.hf_cache_path or default_cache_path()).expanduser()
    name = parse_address(ModelSource(model_id, "safetensors")).model_id
    downloads = cache / f"models--{name.replace('/', '--')}"
    is_download = not (is_path_like(name) or downloads.is_symlink()) and downloads.is_dir()
    layers = model_folder(name)
    folders = {"of downloads": downloads} if is_download else {}
    if layers.is_dir():
        folders["of layers on disk"] = layers
    if not folders:
        hint = "mrs cache list shows the models"
        if name in DEMOS:
            hint = f"it is a part of mrs and cannot be deleted; {hint}"
        raise NotReadable(f"{model_id} is not in the hub cache", where=str(cache), hint=hint)
    sizes = [f"{human_bytes(_folder_bytes(path))} {what}" for what, path in folders.items()]
    text = f"{name}: {', '.join(sizes)}"
    if not is_download and Path(name).exists():
        text += "; its own files stay"
    if not is_sure:
        if not environment.stdin.isatty():
            raise UsageError(
                "not a terminal, so mrs cannot ask for confirmation", where=name, hint="add --yes"
            )
        environment.stderr.write(printable(f"delete {text}? [y/N] "))
        environment.stderr.flush()
        if environment.stdin.readline().strip().lower() not in ("y", "yes"):
            return ExitCode.DONE
    for folder in folders.values():
        shutil.rmtree(folder)
    environment.stdout.write(printable(f"deleted {text}") + "\n")
    return ExitCode.DONE


def _folder_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _prefix_files(folder: str) -> PrefixFiles:
    path = Path(folder).expanduser()
    try:
        sizes = [file.stat().st_size for file in path.iterdir() if file.name.startswith("prefix-")]
    except OSError as error:
        raise UsageError(
            f"--prefix-cache-dir {folder} cannot be read", where=error.strerror or ""
        ) from error
    return PrefixFiles(path, len(sizes), sum(sizes))


def _text(path: Path, models: list[CachedModel], prefixes: PrefixFiles | None) -> str:
    rows = [("model", "revision", "size", "selector", "file")]
    rows += [
        (
            model.model_id,
            model.revision[:12],
            human_bytes(model.size_bytes),
            model.selector,
            _files(model) if model.selector == "gguf" else "",
        )
        for model in models
    ]
    count = "1 model" if len(models) == 1 else f"{len(models)} models"
    total = f"{count}, {human_bytes(_bytes(models))} in {path}"
    lines = [*table(rows, right={2}), "", total] if models else [f"no models in {path}"]
    if by_model := _layers_bytes():
        lines.append(f"layers on disk: {human_bytes(sum(by_model.values()))} in {layers_folder()}")
        lines += [f"  {human_bytes(size)} of {name}" for name, size in by_model.items()]
    if prefixes is not None:
        files = "1 file" if prefixes.count == 1 else f"{prefixes.count} files"
        size = human_bytes(prefixes.size_bytes)
        lines.append(f"prefix cache: {files}, {size} in {prefixes.path}")
    return "\n".join(map(printable, [*lines, *preset_lines()]))


def _files(model: CachedModel) -> str:
    more = len(model.files) - 1
    return f"{model.files[0]} and {more} more" if more else model.files[0]


def _json(path: Path, models: list[CachedModel], prefixes: PrefixFiles | None) -> str:
    listed = [
        {
            "model_id": model.model_id,
            "revision": model.revision,
            "selector": model.selector,
            "files": list(model.files),
            "size_bytes": model.size_bytes,
            "path": str(model.path),
        }
        for model in models
    ]
    prefix_cache = prefixes and {
        "path": str(prefixes.path),
        "files": prefixes.count,
        "size_bytes": prefixes.size_bytes,
    }
    return json_text(
        {
            "path": str(path),
            "size_bytes": _bytes(models),
            "models": listed,
            "prefix_cache": prefix_cache,
            "disk_layers": {
                "path": str(layers_folder()),
                "size_bytes": sum(_layers_bytes().values()),
                "models": _layers_bytes(),
            },
            "presets": preset_names(),
        }
    )


def _layers_bytes() -> dict[str, int]:
    """Bytes of the layers on disk of each model that has some."""
    return {name: _folder_bytes(folder) for name, folder in layers_folders().items()}


def _bytes(models: list[CachedModel]) -> int:
    return sum(model.size_bytes for model in models)
