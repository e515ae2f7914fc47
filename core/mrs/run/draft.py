"""Loads the draft model, which guesses tokens of replies."""

from __future__ import annotations

from mrs.engine.engine_builder import DraftConfig
from mrs.events import OnProgress
from mrs.run.planned_model import PlannedModel, no_report
from mrs.text.same_tokens import require_same_tokens
from mrs.text.text_processor import TextProcessor, read_tokenizer


def require_draft_tokens(draft: PlannedModel | None, text: TextProcessor) -> None:
    """Download the draft model's files. Raises UsageError if its tokens are others."""
    if draft is None:
        return
    draft.fetch(no_report)
    tokenizer = read_tokenizer(draft.planner.checkpoint)
    require_same_tokens(text.tokenizer, tokenizer, draft.request.source.model_id)


def load_draft(model: PlannedModel, report: OnProgress) -> DraftConfig | None:
    """The draft model of a planned model, if it has one."""
    draft, plan = model.draft, model.plan
    if draft is None or plan.draft is None:
        return None
    draft.settle(draft.request, plan.draft)
    return DraftConfig(
        draft.load_decoder(report)[0],
        plan.draft.model.context_tokens,
        plan.draft.workload.cache,
        cost=plan.speed.decode.middle / plan.draft.speed.decode.middle,
    )
