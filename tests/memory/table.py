"""Planned bounds and measured peaks of every configuration, as a table.

    python tests/memory/table.py [FOLDER [MODEL ...]]

FOLDER keeps the models' files for the next time; with MODELs the table has their rows alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from configurations import MIB, QUICK, SLOW, published
from measuring import KERNEL_BYTES, exit_code_within, measured


def main() -> None:
    print("| configuration | low | peak | high | high/peak | loaded | within high | within low |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = sys.argv[2:]
        for each in (*QUICK, *SLOW, *published()):
            if models and each.model not in models:
                continue
            found = measured(each, folder)
            sizes = (found.low, found.peak, found.high)
            ends = [
                exit_code_within(limit, each, folder)
                for limit in (found.high + KERNEL_BYTES, found.low - MIB)
            ]
            cells = [
                each.name,
                *(f"{size / MIB:.0f}" for size in sizes),
                f"{found.high / found.peak:.3f}",
                f"{found.loaded_peak / MIB:.0f}",
                *("works" if end == 0 else f"exit {end}" for end in ends),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
