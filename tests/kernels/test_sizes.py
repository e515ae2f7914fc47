"""Numbers that Python and C both know are the same in both."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from mrs.graph import program
from mrs.kernels import native_limits, packed_layout
from mrs.kernels.cpu import native
from mrs.kernels.workspace import attention, products

SOURCES = Path(native.__file__).parent


def defined(name: str, file: str) -> int:
    """The number that a `#define` of a source file gives a name."""
    found = re.search(rf"^#define {name} (\d+)\b", (SOURCES / file).read_text(), re.MULTILINE)
    assert found is not None, f"{file} does not define {name}"
    return int(found[1])


def members(of: str) -> list[str]:
    """The names of an enumeration in mrs.h that begins with this one."""
    found = re.search(rf"typedef enum {{\s*({of}\b[^}}=]*)", (SOURCES / "mrs.h").read_text())
    assert found is not None
    return [name.strip() for name in found[1].split(",")]


@pytest.mark.parametrize(
    ("name", "file", "module"),
    [
        ("GROUP_ROWS", "mrs.h", packed_layout),
        ("UNIT_COLUMNS", "mrs.h", packed_layout),
        ("NARROW_TOKENS", "mrs.h", products),
        ("WIDE_TOKENS", "mrs.h", products),
        ("PIECE_TOKENS", "program.c", program),
        ("MAX_TAPS", "recurrent/convolution.h", native_limits),
        ("TASK_HEADS", "attention/attention.h", attention),
        ("ROW_VECTORS", "attention/attend_rows.inc.h", attention),
        ("STEP_KEYS", "attention/attention.h", attention),
        ("CODE_ROWS", "attention/attention.h", attention),
    ],
)
def test_numbers(name: str, file: str, module: ModuleType) -> None:
    assert getattr(module, name) == defined(name, file)


def test_numbers_of_other_names() -> None:
    assert defined("LINE", "base.h") == products.LINE_BYTES
    for path in ("avx512", "avx2", "neon", "portable"):
        assert attention.LANES[path] == defined("LANES", f"isa/lanes_{path}.h")
    assert attention.LANES["avx_vnni"] == attention.LANES["avx2"]
    assert max(attention.LANES.values()) == native_limits.WIDEST_LANES


def test_orders() -> None:
    """Formats and activations cross into the library as numbers."""
    formats = members("Q4_0")
    assert tuple(formats[: formats.index("FORMAT_COUNT")]) == packed_layout.PACKED_FORMATS
    activations = tuple(name.lower() for name in members("SILU"))
    assert activations == native_limits.ACTIVATIONS
