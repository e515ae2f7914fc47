"""Drafts of lengths that do not depend on how long steps take here."""

from __future__ import annotations

import pytest

from mrs.engine.draft_pace import DraftPace


def let_steps_take_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is measured, and none has to be before the first draft."""
    monkeypatch.setattr(DraftPace, "add", lambda self, *step: None)
    monkeypatch.setattr(DraftPace, "may_draft", lambda self, sequences: True)
    monkeypatch.setattr(DraftPace, "is_known", True)
