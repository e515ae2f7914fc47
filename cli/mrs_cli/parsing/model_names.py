"""Which words name a model, where a command may stand as well."""

from __future__ import annotations

from pathlib import Path


def is_model_name(word: str) -> bool:
    """Whether a word names a demo, a file or folder with a model, a download, or a hub id.

    A hub id without an owner does so only if that model is downloaded.
    """
    from mrs.source.hub_settings import default_cache_path
    from mrs.source.locate import DEMOS
    from mrs_cli.parsing.shell_completion import is_local_model

    if word in DEMOS or is_local_model(Path(word)):
        return True
    if any(map(str.isspace, word)):
        return False
    is_downloaded = (default_cache_path() / f"models--{word}").is_dir()
    return "/" in word or word.endswith((".gguf", ".uqff")) or is_downloaded


def near_models(word: str) -> list[str]:
    """The demos, downloaded models and presets with names like `word`, an owner left out or not."""
    from difflib import get_close_matches

    from mrs.source.cached import cached_models
    from mrs.source.hub_settings import default_cache_path
    from mrs.source.locate import DEMOS
    from mrs_cli.parsing.presets import preset_names

    known = [*DEMOS, *(model.model_id for model in cached_models(default_cache_path()))]
    by_name = {name.lower(): each for each in known for name in (each, each.rpartition("/")[2])}
    by_name |= {name.lower(): f"@{name}" for name in preset_names()}
    near = get_close_matches(word.lower(), by_name, n=3, cutoff=0.7)
    return list(dict.fromkeys(by_name[name] for name in near))
