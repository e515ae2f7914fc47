"""Three families on an Apple GPU against transformers, as a report to paste.

    python tests/mps.py

Prints for each family the largest error of a conversation's logits, or what torch lacks. Exits
with 1 if one is wrong, and with 0 on a machine without such a GPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "families"))

DEVICE = torch.device("mps", 0)
FAMILIES = ("llama-default", "gemma2-default", "mixtral-default")


def main() -> int:
    if not torch.backends.mps.is_available():
        has_mps = torch.backends.mps.is_built()
        missing = "an Apple GPU and macOS 14 or later" if has_mps else "a build of torch for macOS"
        print("This machine has no Apple GPU that torch can use: nothing was run.")
        print(f"torch {torch.__version__} would need {missing}.")
        return 0
    print(f"torch {torch.__version__}")
    states = [check(name) for name in FAMILIES]
    for name, state in zip(FAMILIES, states, strict=True):
        print(f"{name}: {state or 'right'}")
    return 1 if any(states) else 0


def check(name: str) -> str | None:
    """What is wrong with a family; None if nothing is."""
    from parity_cases import CASES
    from running import check_conversation, load
    from transformers_reference import make_reference

    from mrs.request import ModelSource

    case = next(case for case in CASES if case.id == name)
    with tempfile.TemporaryDirectory() as folder:
        truth = make_reference(case, Path(folder))
        source = ModelSource(folder, "safetensors")
        try:
            check_conversation(load(source, devices=(DEVICE,)), truth)
        except Exception as error:  # noqa: BLE001 - the report names whatever fails
            return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
