"""What is installed: the wheel that is built from the sdist, with a compiler and without."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VENDOR = "core/mrs/server/page/vendor"
LIBRARY = "mrs/kernels/cpu/native/libmrs.so"
pytestmark = [
    pytest.mark.full,  # core has the parts: compiled kernels, man pages, completions
    pytest.mark.skipif(sys.platform != "linux", reason="names of wheels are those of Linux"),
]

#: A compiler for {processor} that only says so, and writes down how it was called.
COMPILER = """#!/bin/sh
case " $* " in
*" -dM "*) printf '#define __{processor}__ 1\\n#define __clang__ 1\\n' ;;
*) echo "$*" >> "$0.log"; for last; do :; done; echo made > "$last" ;;
esac
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    _hatchling(ROOT, "sdist", folder)
    [packed] = folder.glob("*.tar.gz")
    shutil.unpack_archive(packed, folder)
    return folder / packed.name.removesuffix(".tar.gz")


def _hatchling(root: Path, target: str, made: Path, compiler: str = "false") -> str:
    """Builds into the folder `made`; what was said."""
    ran = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(made)],
        cwd=root,
        env={**os.environ, "CC": compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def _wheel(folder: Path) -> tuple[str, zipfile.ZipFile]:
    [path] = folder.glob("*.whl")
    return path.name, zipfile.ZipFile(path)


def test_without_a_compiler_the_wheel_is_for_any_machine(source: Path, tmp_path: Path) -> None:
    said = _hatchling(source, "wheel", tmp_path, compiler="no-such-compiler")
    assert said.count("native kernels left out") == 1
    assert "no-such-compiler does not run" in said
    name, wheel = _wheel(tmp_path)
    assert name.endswith("-py3-none-any.whl")
    files = set(wheel.namelist())
    info = next(each.partition("/")[0] for each in files if each.endswith("/METADATA"))
    data = info.replace(".dist-info", ".data/data/share")

    assert LIBRARY not in files
    assert {"mrs/__init__.py", "mrs_cli/__init__.py", "mrs/demo/model/demo.gguf"} <= files
    assert not any(each.startswith(("tests/", "demo_training/")) for each in files)
    for page in (ROOT / "man").glob("*.[17]"):
        assert f"{data}/man/man{page.suffix[1:]}/{page.name}" in files
    assert f"{data}/bash-completion/completions/mrs" in files

    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    licences = {"LICENSE", *(str(p.relative_to(ROOT)) for p in ROOT.glob(f"{VENDOR}/*/LICENSE*"))}
    assert set(metadata.get_all("License-File") or ()) == licences
    assert {f"{info}/licenses/{each}" for each in licences} <= files
    stated = str(metadata["License-Expression"])
    table = (ROOT / VENDOR / "README.md").read_text(encoding="utf-8")
    for licence in ("MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "MPL-2.0"):
        assert (licence in stated) == (licence in table), licence


@pytest.mark.parametrize(
    ("processor", "file", "flag"),
    [("aarch64", "isa/neon.c", "-mcpu=generic+dotprod"), ("x86_64", "isa/amx.c", "-mavx512vnni")],
)
def test_the_compiler_says_which_processor_a_wheel_is_for(
    source: Path, tmp_path: Path, processor: str, file: str, flag: str
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER.format(processor=processor))
    compiler.chmod(0o755)
    _hatchling(source, "wheel", tmp_path, str(compiler))
    name, wheel = _wheel(tmp_path)
    assert name.endswith(f"-py3-none-linux_{processor}.whl")
    assert LIBRARY in wheel.namelist()
    calls = (tmp_path / "cc.log").read_text().splitlines()
    isa = [line for line in calls if "/isa/" in line and "portable.c" not in line]
    [special] = [line for line in isa if file in line]
    assert flag in special.split()
    assert len(isa) == {"aarch64": 1, "x86_64": 4}[processor]
