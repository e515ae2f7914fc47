"""Completion of the values of flags in a shell.

Each function takes the incomplete value. If it returns nothing, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

#: At most so many entries of a folder are searched for models.
MAX_ENTRIES = 2000


def isq_formats(incomplete: str) -> list[str]:
    from mrs.quantization.isq import ISQ_NAMES

    return _beginning(incomplete.lower(), ISQ_NAMES)


def coding_agents(incomplete: str) -> list[str]:
    from mrs_cli.parsing.coding_agents import AGENTS

    return _beginning(incomplete, AGENTS)


def truths(incomplete: str) -> list[str]:
    return _beginning(incomplete, ("true", "false"))


def architectures(incomplete: str) -> list[str]:
    from mrs.architecture.family_registry import families
    from mrs.architecture.vision.describe_vision import vision_families

    return _beginning(incomplete.lower(), [*families(), *vision_families()])


def plain_models(incomplete: str) -> list[str]:
    """The demos, safetensors models in the hub cache, and folders with a safetensors model."""
    return _models(incomplete, {"plain", "vision-plain"})


def gguf_models(incomplete: str) -> list[str]:
    """The demo, GGUF models in the hub cache, folders with a GGUF model, and .gguf files."""
    return _models(incomplete, {"gguf"})


def all_models(incomplete: str) -> list[str]:
    if incomplete.startswith("@"):
        from mrs_cli.parsing.presets import preset_names

        return _beginning(incomplete, (f"@{name}" for name in preset_names()))
    return _models(incomplete, {"plain", "vision-plain", "gguf"})


def _models(incomplete: str, kinds: set[str]) -> list[str]:
    from mrs.source.cached import cached_models
    from mrs.source.hub_settings import default_cache_path
    from mrs.source.locate import DEMOS

    demos = DEMOS if "plain" in kinds else ("demo",)
    cached = (model for model in cached_models(default_cache_path()) if model.selector in kinds)
    offered = _beginning(incomplete, [*demos, *(model.model_id for model in cached)])
    return list(dict.fromkeys([*offered, *_local_models(incomplete, kinds)]))


def _local_models(incomplete: str, kinds: set[str]) -> Iterator[str]:
    """Paths of models that begin with `incomplete`."""
    start, slash, name = incomplete.rpartition("/")
    try:
        entries = list(islice(Path(f"{start}{slash}" or ".").expanduser().iterdir(), MAX_ENTRIES))
    except (OSError, RuntimeError):  # RuntimeError: ~name of an unknown user
        return
    for entry in sorted(entries):
        if entry.name.startswith(name) and is_local_model(entry, kinds):
            yield f"{start}{slash}{entry.name}"


def is_local_model(path: Path, kinds: Collection[str] = ("plain", "gguf")) -> bool:
    """Whether a path is a folder or a file with a model of one of these kinds."""
    try:
        path = path.expanduser()
        if path.is_dir():
            is_gguf = any(path.glob("*.gguf"))
            return ("gguf" in kinds and is_gguf) or (
                "plain" in kinds and (path / "config.json").is_file()
            )
        return "gguf" in kinds and path.suffix == ".gguf"
    except (OSError, RuntimeError, ValueError):  # ~name of an unknown user, a zero byte
        return False


def _beginning(incomplete: str, values: Iterable[str]) -> list[str]:
    return [value for value in values if value.startswith(incomplete)]
