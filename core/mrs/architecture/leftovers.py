"""Tensors of a checkpoint that the model does not use: those that may stay, and those that may not.

A tensor that the model would need, if it had one more feature, is an error: anything beside the
weights that a layer reads, and what some other family reads. Whole modules of another purpose
(heads for training, drafts of further tokens, towers, adapters) are named in a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from mrs.architecture.family_registry import families
from mrs.architecture.gguf_names import GGUF
from mrs.architecture.tensor_names import DERIVED_SUFFIXES, SAFETENSORS
from mrs.errors import Unsupported

#: How many groups of names a warning has.
_MOST_GROUPS = 8
#: Slots whose names follow that of their layer.
_INSIDE_LAYERS = ("mixer.", "ffn.", "cross.", "input.", "laurel.", "output_scale")
#: Parts of the names of adapters, which are within layers.
_ADAPTER = re.compile(r"\.lora_(embedding_)?[AB](?![a-z0-9])")
#: Parts of names, outside of layers, of drafts, of towers and projectors, and of other heads.
_OTHER = re.compile(
    r"(^|\.)(mtp|nextn|eagle|medusa|d2t|t2d|v_head|value_head|reward_head|score|classifier"
    r"|vision|visual|audio|speech|image|multi_modal|mm_projector|talker|code2wav)(?![a-z0-9])",
    re.IGNORECASE,
)


def leftover_warnings(
    tensors: Collection[str], used: Collection[str], ignored: Collection[str], where: str
) -> tuple[str, ...]:
    """The warning that names the `tensors` that are not `used`, if there are any.

    Those whose names start with one of `ignored` are known to be of another purpose. Raises
    Unsupported for a tensor that the model would need.
    """
    unused = [name for name in tensors if name not in used]
    unused = [name for name in unused if not name.endswith(DERIVED_SUFFIXES)]
    if not unused:
        return ()
    modules = {path for name in used for path in _paths(name)}
    known = tuple(ignored)
    for name in unused:
        if not name.startswith(known) and not _has_other_purpose(name, modules):
            raise Unsupported(
                f"the tensor {name!r} is not part of this architecture",
                where=where,
                hint="choose another architecture with --arch; or the model needs an unknown "
                "feature",
            )
    counts = "1 tensor is" if len(unused) == 1 else f"{len(unused)} tensors are"
    return (f"{counts} not used: {_grouped(unused, modules)}",)


def _paths(name: str) -> Iterator[str]:
    """The modules of a tensor, from the outermost one on."""
    for index, character in enumerate(name):
        if character == ".":
            yield name[:index]


def _has_other_purpose(name: str, modules: Collection[str]) -> bool:
    """Whether a tensor is outside of all `modules` that have tensors in use.

    The list of layers has further ones; the root of the names has other modules.
    """
    module = next((path for path in _paths(name) if path not in modules), name)
    parent, _, last = module.rpartition(".")
    if last.isdigit() or _ADAPTER.search(name):
        return True
    if any(part.isdigit() for part in parent.split(".")):  # in a layer
        return False
    return bool(_OTHER.search(name)) or (not parent and module not in _known_modules())


@cache
def _known_modules() -> frozenset[str]:
    """The outermost modules, in files of any family, of what is outside of layers."""
    tables: list[Mapping[str, str]] = [SAFETENSORS, GGUF]
    for family in families().values():
        tables += [family.safetensors, family.gguf]
    names = (
        name
        for table in tables
        for slot, name in table.items()
        if not slot.startswith(_INSIDE_LAYERS)
    )
    return frozenset(name.partition(".")[0] for name in names)


def _grouped(names: Collection[str], modules: Collection[str]) -> str:
    """The names by their outermost module that has nothing in use, numbers as `*`."""
    groups: dict[str, None] = {}
    for name in names:
        module = next((path for path in _paths(name) if path not in modules), None)
        group = name if module is None else f"{module}.*"
        if module is None or not module.rpartition(".")[2].isdigit():
            group = re.sub(r"(?<=\.)\d+(?=\.)", "*", group)
        groups.setdefault(group)
    listed = list(groups)
    more = f" and {len(listed) - _MOST_GROUPS} more" if len(listed) > _MOST_GROUPS else ""
    return ", ".join(listed[:_MOST_GROUPS]) + more
