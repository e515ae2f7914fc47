"""Fetches published models for the tests of this folder.

    python tests/published/fetch.py            all of them: 0.3, 0.5 and 1.3 GB
    python tests/published/fetch.py NAME …     some of them

They are put into the folder that the variable PUBLISHED_MODELS names, or into the user's cache,
after their hash was checked. What is there already is not fetched again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.published_files import MODELS, CannotFetch, fetch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(MODELS)}")
    names = parser.parse_args().names
    if unknown := set(names).difference(MODELS):
        sys.exit(f"{', '.join(sorted(unknown))}: give {', '.join(MODELS)}")
    for name in names or MODELS:
        try:
            fetch(MODELS[name])
        except CannotFetch as error:
            sys.exit(f"cannot be had here: {error}")
        print(MODELS[name].path)


if __name__ == "__main__":
    main()
