"""Sampling settings that the model suggests fill what a person left open."""

from __future__ import annotations

import re

from mrs.request import Sampling

TALK = "\\set\n\\set top-k 5\n\\set\nhello\n\\set top-k default\n\\set temperature default\nhello\n"


def origins(err: str) -> list[dict[str, str]]:
    """For each `\\set`: where each of some settings comes from, with its value."""
    names = ("temperature", "top-k", "top-p", "min-p", "seed")
    rows = [re.split(" {2,}", line) for line in err.splitlines() if line.startswith(names)]
    found = [(row[0], f"{row[1]} {row[2]}") for row in rows if len(row) == 4]
    return [dict(found[i : i + len(names)]) for i in range(0, len(found), len(names))]


def test_set_shows_where_values_come_from(run_mrs):
    ran = run_mrs("-i", "-s", "4", "plain", "-m", "warm", "--temperature", "0.2", stdin=TALK)
    assert origins(ran.err) == [
        {
            "temperature": "0.2 flag",
            "top-k": "20 model",
            "top-p": "0.95 model",
            "min-p": "0 default",
            "seed": "4 flag",
        },
        {
            "temperature": "0.2 flag",
            "top-k": "5 \\set",
            "top-p": "0.95 model",
            "min-p": "0 default",
            "seed": "4 flag",
        },
    ]
    first, second = (sampling for _, sampling in ran.models[0].asked)
    assert (first.temperature, first.top_k, first.top_p) == (0.2, 5, 0.95)
    assert (second.temperature, second.top_k, second.top_p) == (0.6, 20, 0.95)


def test_a_prompt_uses_them_too(run_mrs):
    ran = run_mrs("-P", "hello", "--top-p", "1", "plain", "-m", "warm")
    assert ran.models[0].asked[0][1] == Sampling(temperature=0.6, top_k=20, top_p=1.0)


def test_the_documented_defaults_stay_where_the_model_says_nothing(run_mrs):
    assert run_mrs("-P", "hello", "plain", "-m", "x").models[0].asked[0][1] == Sampling()


def test_a_saved_chat_keeps_its_settings(run_mrs, tmp_path):
    file = tmp_path / "chat.json"
    run_mrs("-i", "plain", "-m", "x", stdin=f"hello\n\\save {file}\n")
    ran = run_mrs("-i", "plain", "-m", "warm", stdin=f"\\load {file}\n\\set\nhello\n")
    assert origins(ran.err)[0]["temperature"] == "0.7 saved chat"
    assert ran.models[0].asked[0][1] == Sampling()
