"""A replica's server is started with the words of the fleet."""

from __future__ import annotations

import pytest

from mrs_cli.app import command_tree
from mrs_cli.commands.fleet import replica_words

SERVED = ["serve", "--port", "0"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("serve --ray local -m demo", [*SERVED, "-m", "demo"]),
        ("serve --ray=auto --replicas 2 --max-replicas=4 -m demo", [*SERVED, "-m", "demo"]),
        ("-q serve -p 80 --isq q4k --host 0.0.0.0 plain -m X",
         ["-q", *SERVED, "--isq", "q4k", "plain", "-m", "X"]),
        ("serve -p80 --serve-ip=::1 -m serve", [*SERVED, "-m", "serve"]),
        ("-p 80 --ray local -m X", ["--port", "0", "-m", "X"]),
        ("serve --prefix-cache-n 3 -m X", [*SERVED, "--prefix-cache-n", "3", "-m", "X"]),
    ],
)  # fmt: skip
def test_words_of_the_fleet_are_left_out(words: str, expected: list[str]) -> None:
    assert replica_words(words.split(), command_tree()) == expected
