"""What Python knows of the library's structs and functions is what its C says."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from mrs.kernels import c_structs
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.native import structs

SOURCES = Path(structs.__file__).parent
STRUCTS = [
    each
    for each in vars(c_structs).values()
    if isinstance(each, type) and issubclass(each, ctypes.Structure)
]


def test_the_generated_file_is_what_the_headers_make() -> None:
    assert structs.GENERATED.read_text() == structs.generated(), (
        "run python -m mrs.kernels.cpu.native.structs"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int64_t end, piece_rows;", "int64_t piece_rows, end;"),
        ("double least;", "float least;"),
        ("#define MAX_PARTS 5", "#define MAX_PARTS 6"),
        ("    SPLIT, ", "    SHUFFLE, SPLIT, "),
    ],
)
def test_a_change_of_a_header_changes_the_generated_file(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "native"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(structs, "_SOURCES", sources)
    assert structs.generated() == structs.GENERATED.read_text()
    header = sources / "program.h"
    assert before in header.read_text()
    header.write_text(header.read_text().replace(before, after))
    assert structs.generated() != structs.GENERATED.read_text()


def test_types_that_are_not_understood_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.c").write_text("EXPORT void mrs_run(long long x) {}\n")
    monkeypatch.setattr(structs, "_SOURCES", tmp_path)
    with pytest.raises(ValueError, match="long"):
        structs.generated()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_compiler_lays_the_structs_out_in_the_same_way(tmp_path: Path) -> None:
    assert len(STRUCTS) >= 19
    headers = {(each.__doc__ or "").removeprefix("Of ").removesuffix(".") for each in STRUCTS}
    checks = [f'#include "{header}"' for header in sorted(headers)]
    for each in STRUCTS:
        name = each.__name__
        checks.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(each)}, "{name}");')
        for field in (row[0] for row in each._fields_):
            at, size = getattr(each, field).offset, getattr(each, field).size
            checks.append(f'_Static_assert(offsetof({name}, {field}) == {at}, "{name}.{field}");')
            checks.append(
                f'_Static_assert(sizeof((({name} *)0)->{field}) == {size}, "{name}.{field}");'
            )
    checks += [f'_Static_assert({each.name} == {each}, "{each.name}");' for each in c_structs.Kind]
    source = tmp_path / "checks.c"
    source.write_text("\n".join((*checks, "")))
    command = ["cc", "-std=gnu11", "-fsyntax-only", f"-I{SOURCES}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_the_library_has_every_function() -> None:
    library = native_library()
    assert library is not None
    for name, (result, parameters) in c_structs.SIGNATURES.items():
        function = getattr(library.functions, name)
        assert function.restype is result
        assert tuple(function.argtypes) == parameters
