"""What drafts did in earlier runs, and what plans make of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mrs.devices.measurements import cache_file, host_key, write_entries
from mrs.plan.report.document import to_document
from mrs.plan.speed import draft_record
from mrs.plan.speed.draft_record import DraftRecord, read_draft_record, remember_drafts
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs_cli.app import main
from support.model_files import DEMO

#: Of 100 steps, 60 had drafts of 3, of which 120 of 180 tokens were accepted: 220 tokens.
RECORD = DraftRecord(100, 60, 180, 120, 110)
DEMO_REQUEST = RunRequest(ModelSource(str(DEMO), "safetensors"), cpu=True, max_seq_len=64)


def test_a_record_says_how_much_was_saved() -> None:
    assert RECORD.gain == pytest.approx(2.0)
    assert RECORD.accepted_share == pytest.approx(2 / 3)
    assert DraftRecord().gain == 1.0


def test_runs_add_up_and_old_ones_fade() -> None:
    assert read_draft_record("a") is None
    remember_drafts("a", RECORD)
    remember_drafts("a", RECORD)
    remember_drafts("b", RECORD)
    assert read_draft_record("a") == RECORD.plus(RECORD)
    assert read_draft_record("b") == RECORD
    for _ in range(100):
        remember_drafts("a", RECORD._replace(plain_steps=220))
    record = read_draft_record("a")
    assert record is not None
    assert record.gain == pytest.approx(1.0, rel=0.1)
    assert record.steps <= draft_record.MOST_STEPS + 100


def test_a_short_run_says_nothing() -> None:
    remember_drafts("a", DraftRecord(20, 10, 30, 20, 30))
    assert not cache_file(draft_record.FILE_NAME).exists()


def test_only_the_latest_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_record, "MOST_RECORDS", 3)
    for key in "abcad":
        remember_drafts(key, RECORD)
    assert [key for key in "abcd" if read_draft_record(key)] == ["a", "c", "d"]


@pytest.mark.parametrize(
    "entry", [None, [], {"a": 3}, {"a": [1, 2]}, {"a": ["x"] * 5}, {"a": [100, -1, 0, 0, 1]}]
)
def test_a_damaged_file_says_nothing(entry: object) -> None:
    write_entries(cache_file(draft_record.FILE_NAME), {host_key(): entry})
    assert read_draft_record("a") is None
    remember_drafts("a", RECORD)
    assert read_draft_record("a") == RECORD


def test_a_plan_says_what_earlier_drafts_gained() -> None:
    plan = ModelLoader(DEMO_REQUEST).plan
    assert plan.draft_gain is None, "what lookup finds depends on the text"
    remember_drafts(plan.draft_key, RECORD)
    plan = ModelLoader(DEMO_REQUEST).plan
    drafts = to_document(plan)["drafts"]
    assert drafts == {
        "drafter": "lookup",
        "gain": pytest.approx(2.0),
        "accepted_share": pytest.approx(2 / 3),
        "is_measured": True,
        "decode_tokens_per_s": pytest.approx(2 * plan.speed.decode.expected),
    }
    for other in ({"speculate": "off"}, {"calibration": False}):
        assert ModelLoader(replace(DEMO_REQUEST, **other)).plan.draft_gain is None


def test_bench_measures_drafts_for_the_next_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model repeats itself after no text; its replies to the two have few tokens."""
    assert main(["bench", "-q", "--json", "--drafts", "-p", "8", "-g", "4", "-m", "demo"]) == 0
    edit, question = json.loads(capsys.readouterr().out)["drafts"]
    assert (edit["text"], question["text"]) == ("code edit", "question")
    for each in (edit, question):
        assert each["tokens"] > 1
        assert each["gain"] > 0
        pairs = zip(each["drafted_by_position"], each["accepted_by_position"], strict=True)
        assert all(accepted <= drafted for drafted, accepted in pairs)
    assert main(["bench", "-q", "--json", "-p", "8", "-g", "4", "-m", "demo"]) == 0
    assert json.loads(capsys.readouterr().out)["drafts"] == []
