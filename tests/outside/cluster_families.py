"""Every text family in several processes, as a table: its tokens and logits in one process, too.

    python tests/outside/cluster_families.py [--all] [FAMILY …]

The layers of a random model of the family are split over 2, 3 or 4 processes, shared by 2, 3 or 4,
and split into two stages of two processes that share them; with `--all` in all these ways, and else
in three, which other families follow with other numbers. Each time there are five replies at
once, second turns, prefix hits and the logits of a prompt in three pieces. Split layers have to
make what one process makes, and shared ones what one process makes that adds the parts in order,
bit for bit.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in (".", "distributed", "families")]

import torch
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from gemma3n_cases import GEMMA3N
from gemma4_cases import SHARED
from ordered_reference import ordered_reference
from parity_cases import CASES
from saved_models import save_model
from test_exact import logits_of, talk

from mrs.distributed.protocol.failures import PeerFailed
from mrs.errors import Unsupported, UsageError
from mrs.model.decoder import Decoder

#: Processes, and how many of them share layers.
WAYS = [(2, 1), (3, 1), (4, 1), (2, 2), (3, 3), (4, 4), (4, 2)]
_WIDE = {"num_attention_heads": 8, "num_key_value_heads": 4}
_WIDE_DELTA_NET = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
_REFUSALS = ("cannot be shared", "cannot be in several", "cannot be split")
#: What an overloaded machine, or one that stops processes, gets.
_TRIES = 4


def said_by(decoder: Decoder) -> tuple[list[list[int]], torch.Tensor]:
    return talk(engine_of(decoder)), logits_of(decoder)


def deeper(case: Any) -> Any:
    """The case with at least four layers and four KV heads, as far as its config allows."""
    config = dict(case.config)
    layers = config.get("num_hidden_layers", 2)
    times = -(-4 // layers)
    for name, value in config.items():
        if isinstance(value, list) and len(value) == layers:
            config[name] = value * times
        if name in _WIDE_DELTA_NET:
            config[name] = _WIDE_DELTA_NET[name]
    return replace(case, changes={**config, "num_hidden_layers": layers * times, **_WIDE})


def saved(case: Any, folder: Path) -> Path:
    """The model's folder; as the case says if its config allows nothing larger."""
    for number, each in enumerate((deeper(case), case)):
        try:
            made = save_model(each, folder / str(number)).folder
            said_by(single_decoder(request_for(made, None, 0)))
            return made
        except Exception as error:
            if each is case:
                raise
            print(f"{case.id}: as it is, {type(error).__name__}: {str(error)[:80]}", flush=True)
    raise AssertionError


def row_of(model: Path, workers: Workers, ways: Collection[tuple[int, int]]) -> list[str]:
    """A cell for each way, empty for one that is left out."""
    references: dict[int, Any] = {1: said_by(single_decoder(request_for(model, None, 0)))}
    return [_cell(model, workers, each, references) if each in ways else "" for each in WAYS]


def _cell(
    model: Path,
    workers: Workers,
    way: tuple[int, int],
    references: dict[int, Any],
    tries: int = _TRIES,
) -> str:
    ranks, size = way
    try:
        if size not in references:
            references[size] = said_by(ordered_reference(request_for(model, None, 0), size))
        request = request_for(model, workers.port, ranks - 1)
        assert request.cluster is not None
        request = replace(request, cluster=replace(request.cluster, group_size=size))
        with cluster_decoder(request) as (decoder, _):
            tokens, logits = said_by(decoder)
    except PeerFailed as error:
        if tries > 1:
            return _cell(model, workers, way, references, tries - 1)
        return f"**{error}**"
    except (Unsupported, UsageError) as error:
        is_known = any(word in str(error) for word in _REFUSALS)
        return f"refused: {str(error).split(' cannot')[0]}" if is_known else f"**{error}**"
    expected, expected_logits = references[size]
    return "yes" if tokens == expected and torch.equal(logits, expected_logits) else "**no**"


def main(names: list[str]) -> int:
    wanted = set(names) - {"--all"}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = {each.family: each for each in reversed([*CASES, GEMMA3N[0], SHARED[0]])}
    heads = [f"{size} share" if size == n else f"{n // size} x {size}" for n, size in WAYS]
    heads[:3] = [f"{n} processes" for n, _ in WAYS[:3]]
    lines = [f"| family | {' | '.join(heads)} |", f"|{' --- |' * (len(WAYS) + 1)}"]
    with tempfile.TemporaryDirectory() as name:
        workers = Workers(Path(name), 3)
        try:
            for number, (family, case) in enumerate(sorted(cases.items())):
                if not wanted or family in wanted:
                    since_s = time.monotonic()
                    own = [WAYS[number % 3], WAYS[3 + number % 3], WAYS[-1]]
                    ways = WAYS if "--all" in names else own
                    cells = row_of(saved(case, Path(name) / family), workers, ways)
                    lines.append(f"| {family} | {' | '.join(cells)} |")
                    print(lines[-1], f"{time.monotonic() - since_s:.0f} s", flush=True)
        finally:
            workers.end()
    print(*lines, sep="\n")
    return any("**" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
