"""Replies of the demo model for schemas of the JSON Schema test suite, each validated.

    python tests/grammar/suite.py FOLDER… [--count 500] [--seed 0]

FOLDERs are such as `tests/draft2020-12` and `tests/draft2019-09` of
https://github.com/json-schema-org/JSON-Schema-Test-Suite. At temperature 1, every reply that
finishes must validate; a schema that cannot be enforced must be refused in one line. Exits with 1
if a reply does not validate.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from mrs.errors import MrsError
from mrs.events import TextDelta
from mrs.request import Grammar, Message, ModelSource, RunRequest, Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.run.model_loader import ModelLoader

#: A toy model seldom ends a string or a number.
TRIES = 4
QUESTION: list[Message] = [{"role": "user", "content": "Describe yourself as JSON."}]


def schemas_in(folder: Path) -> list[tuple[str, Any]]:
    """A name and a schema for each group of tests that has a schema other than true or false."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            if isinstance(group["schema"], dict):
                name = f"{path.relative_to(folder.parent)}: {group['description']}"
                found.append((name, group["schema"]))
    return found


def outcome(model: LoadedModel, schema: Any, seed: int, max_tokens: int = 160) -> str:
    """`valid`, `unfinished`, `unchecked: …`, `refused: …` or `INVALID: …`."""
    sampling = Sampling(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        max_tokens=max_tokens,
        seed=seed,
        grammar=Grammar("json_schema", json.dumps(schema)),
    )
    try:
        *deltas, end = model.stream_chat(QUESTION, sampling)
    except MrsError as error:
        return (
            "INVALID: an error of several lines" if "\n" in str(error) else f"refused: {error.what}"
        )
    if end.reason != "stop":
        return "unfinished"
    text = "".join(each.text for each in deltas if isinstance(each, TextDelta))
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except re.error:
        return "unchecked: a pattern that Python cannot read"
    except (ValueError, jsonschema.ValidationError) as error:
        return f"INVALID: {text[:80]} {str(error).splitlines()[0]}"
    return "valid"


def outcomes(schemas: list[tuple[str, Any]], seed: int) -> Iterator[tuple[str, str]]:
    model = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    try:
        for number, (name, schema) in enumerate(schemas):
            results = (outcome(model, schema, seed + number + 1000 * n) for n in range(TRIES))
            yield name, next((each for each in results if each != "unfinished"), "unfinished")
    finally:
        model.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    schemas = [each for folder in given.folders for each in schemas_in(folder)]
    random.Random(given.seed).shuffle(schemas)
    counts: Counter[str] = Counter()
    for name, result in outcomes(schemas[: given.count], given.seed):
        counts[result.partition(":")[0]] += 1
        if result not in ("valid", "unfinished"):
            print(f"{result}   [{name}]")
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 1 if counts["INVALID"] else 0


if __name__ == "__main__":
    sys.exit(main())
