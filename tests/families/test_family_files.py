"""No code asks which family it has: specs have the concepts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mrs
from mrs.architecture.family_registry import families

CORE = Path(mrs.__file__).parent
#: GGUF files name their kinds of tokenizers after models.
NAMES_TOKENIZERS = CORE / "text" / "gguf_tokenizer.py"
NAMES = frozenset(
    name for each in families().values() for name in (each.name, each.gguf_arch, *each.aliases)
)


@pytest.mark.full
def test_nothing_branches_on_the_name_of_a_family() -> None:
    found = {
        f"{path.relative_to(CORE)}:{line}"
        for path in CORE.rglob("*.py")
        if path != NAMES_TOKENIZERS
        for line in _branches(ast.parse(path.read_text()))
    }
    assert found == set()


@pytest.mark.parametrize(
    "code",
    [
        "x.family == y",
        "y != spec.family",
        "config.values['model_type'] in ('llama', 'x')",
        "match x:\n case 'gemma2': pass",
    ],
)
def test_such_a_branch_is_found(code: str) -> None:
    assert list(_branches(ast.parse(code)))


def _branches(tree: ast.Module) -> Iterator[int]:
    """The lines that compare a model's family, or anything with the name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_family = any(isinstance(s, ast.Attribute) and s.attr == "family" for s in sides)
            if is_family or any(_names_family(part) for side in sides for part in ast.walk(side)):
                yield node.lineno
        elif isinstance(node, ast.MatchValue) and _names_family(node.value):
            yield node.lineno


def _names_family(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES
