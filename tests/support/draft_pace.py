"""Drafts of lengths that do not depend on how long steps take here, or on what they cost."""

from __future__ import annotations

import pytest

from mrs.engine.draft_allowance import DraftAllowance
from mrs.engine.draft_pace import DraftPace


def let_steps_take_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is measured, and none has to be before the first draft."""
    monkeypatch.setattr(DraftPace, "add", lambda self, *step: None)
    monkeypatch.setattr(DraftPace, "may_draft", lambda self, sequences: True)
    monkeypatch.setattr(DraftPace, "is_known", True)


def let_drafts_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt lookup drafts however dear its drafts are, as they are for tiny models."""
    monkeypatch.setattr(DraftAllowance, "most_tokens", lambda self, cost, tokens, wanted: wanted)
