"""Write `mrs.kernels.c_structs`: the library's structs and functions as ctypes knows them.

`python -m mrs.kernels.cpu.native.structs` reads them from the headers and sources of this folder,
after a change of what the library exports. It understands the C of this library, not all of C:
structs of numbers, pointers, arrays and other structs, one of which may not have functions.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SOURCES = Path(__file__).parent
#: The file that is written.
GENERATED = _SOURCES.parents[1] / "c_structs.py"

_NUMBERS = {
    "bool": "c_bool",
    "int": "c_int",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "float": "c_float",
    "double": "c_double",
}
#: What the file calls the numbers of parameters.
_SHORT = {"ctypes.c_int": "_I", "ctypes.c_int64": "_L", "ctypes.c_float": "_F"}
#: Enums that Python passes to the library and that no other table of Python has.
_ENUMS = ("Kind",)

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STRUCT = re.compile(
    r"typedef struct \{(?P<fields>[^{}]*)\} (?P<name>\w+);"
    r"|struct (?P<tag>\w+) \{(?P<tag_fields>[^{}]*)\};"
)
_ENUM = re.compile(r"typedef enum \{(?P<members>[^{}]*)\} (?P<name>\w+);")
_DEFINE = re.compile(r"^#define (\w+) (\d+)\b", re.MULTILINE)
_FUNCTION = re.compile(r"^EXPORT (?P<type>[^(]*?)(?P<name>mrs_\w+)\((?P<all>[^)]*)\)", re.MULTILINE)
_DECLARATOR = re.compile(r"(?P<stars>\**)(?P<name>\w*)(?:\[(?P<length>\w+)\])?")

_LINE_CHARS = 100
_HEAD = '''"""The structs and functions of the native library.

Made of its headers and sources by `python -m mrs.kernels.cpu.native.structs`: do not edit.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

#: Addresses, and numbers as C calls them: int, long and float.
_A, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
'''


class _Declared(NamedTuple):
    """A field or parameter: `base` is the type that its pointers lead to."""

    name: str
    base: str
    is_pointer: bool
    length: str | None = None


class _Struct(NamedTuple):
    name: str
    header: str
    fields: tuple[_Declared, ...]


class _Function(NamedTuple):
    name: str
    result: _Declared
    parameters: tuple[_Declared, ...]


def generated() -> str:
    """The text of the file. Raises ValueError for C that is not understood."""
    paths = (path for path in sorted(_SOURCES.rglob("*.h")) if ".inc" not in path.suffixes)
    headers = {path: _code(path) for path in paths}
    functions = [f for path in sorted(_SOURCES.rglob("*.c")) for f in _functions(_code(path))]
    structs = {s.name: s for path, text in headers.items() for s in _structs(path, text)}
    defines = dict(pair for text in headers.values() for pair in _DEFINE.findall(text))
    enums = [e for path, text in headers.items() for e in _enums(path, text)]
    used = _in_order(structs, functions)
    lengths = {f.length for s in used for f in s.fields if f.length} & defines.keys()
    blocks = [
        "".join(f"{name} = {defines[name]}\n" for name in sorted(lengths)),
        *enums,
        *(_struct_lines(struct, structs) for struct in used),
        _signature_lines(functions, structs),
    ]
    return _HEAD + "\n" + "\n\n".join(block for block in blocks if block)


def _code(path: Path) -> str:
    """A file without comments."""
    return _COMMENT.sub(" ", path.read_text())


def _structs(path: Path, text: str) -> Iterator[_Struct]:
    """The structs of a header without those that have pointers to functions."""
    for match in _STRUCT.finditer(text):
        name, fields = match["name"] or match["tag"], match["fields"] or match["tag_fields"]
        if "(" not in fields:
            declared = tuple(f for line in fields.split(";") for f in _declared(line))
            yield _Struct(name, path.relative_to(_SOURCES).as_posix(), declared)


def _functions(text: str) -> Iterator[_Function]:
    for match in _FUNCTION.finditer(text):
        (result,) = _declared(match["type"])
        texts = [] if match["all"].strip() == "void" else match["all"].split(",")
        parameters = tuple(p for each in texts for p in _declared(each))
        yield _Function(match["name"], result, parameters)


def _declared(text: str) -> Iterator[_Declared]:
    """What one declaration declares, such as `const float *weight, *bias`."""
    text = re.sub(r"\b(const|struct)\b|\s+", " ", text).strip()
    if not text:
        return
    base, _, names = text.partition(" ")
    base, stars = base.rstrip("*"), "*" * base.count("*")
    for name in (stars + names).split(","):
        match = _DECLARATOR.fullmatch(name.replace(" ", ""))
        if match is None:
            raise ValueError(f"cannot read the declaration {text!r}")
        yield _Declared(match["name"], base, bool(match["stars"]), match["length"])


def _enums(path: Path, text: str) -> Iterator[str]:
    for match in _ENUM.finditer(text):
        if match["name"] in _ENUMS:
            names = [name.strip() for name in match["members"].split(",") if name.strip()]
            members = "".join(f"    {name} = {value}\n" for value, name in enumerate(names))
            header = path.relative_to(_SOURCES).as_posix()
            yield f'class {match["name"]}(IntEnum):\n    """Of {header}."""\n\n{members}'


def _in_order(structs: dict[str, _Struct], functions: list[_Function]) -> list[_Struct]:
    """The structs that functions take or lead to, those first that others have as fields."""
    ordered: dict[str, _Struct] = {}

    def add(name: str) -> None:
        if name in structs and name not in ordered:
            for field in structs[name].fields:
                add(field.base)
            ordered[name] = structs[name]

    for function in functions:
        for declared in (function.result, *function.parameters):
            add(declared.base)
    return list(ordered.values())


def _type(declared: _Declared, structs: dict[str, _Struct]) -> str:
    if declared.is_pointer:
        kind = "ctypes.c_void_p"
    elif declared.base in structs:
        kind = declared.base
    elif declared.base in _NUMBERS:
        kind = f"ctypes.{_NUMBERS[declared.base]}"
    else:
        raise ValueError(f"{declared.name or 'a result'} is of the unknown type {declared.base!r}")
    return kind if declared.length is None else f"{kind} * {declared.length}"


def _struct_lines(struct: _Struct, structs: dict[str, _Struct]) -> str:
    rows = "".join(f'        ("{f.name}", {_type(f, structs)}),\n' for f in struct.fields)
    return (
        f'class {struct.name}(ctypes.Structure):\n    """Of {struct.header}."""\n\n'
        f"    _fields_ = (\n{rows}    )\n"
    )


def _signature_lines(functions: list[_Function], structs: dict[str, _Struct]) -> str:
    rows = []
    for function in sorted(functions, key=lambda f: f.name):
        result = function.result
        is_void = result.base == "void" and not result.is_pointer
        returned = "None" if is_void else _short(result, structs)
        kinds = [_short(parameter, structs) for parameter in function.parameters]
        parameters = f"({', '.join(kinds)}{',' if len(kinds) == 1 else ''})"
        row = f'    "{function.name}": ({returned}, {parameters}),\n'
        if len(row) > _LINE_CHARS:
            row = f'    "{function.name}": (\n        {returned},\n        {parameters},\n    ),\n'
        rows.append(row)
    return (
        "#: Of each exported function, the types of its result and of its parameters.\n"
        f"SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {{\n{''.join(rows)}}}\n"
    )


def _short(declared: _Declared, structs: dict[str, _Struct]) -> str:
    if declared.is_pointer:
        return "ctypes.c_char_p" if declared.base == "char" else "_A"
    kind = _type(declared, structs)
    return _SHORT.get(kind, kind)


if __name__ == "__main__":
    GENERATED.write_text(generated())
