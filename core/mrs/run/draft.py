"""Loads the draft model, which guesses tokens of replies."""

from __future__ import annotations

from mrs.engine.engine_builder import DraftConfig
from mrs.errors import UsageError
from mrs.events import OnProgress
from mrs.model.model_weights import ModelWeights
from mrs.plan.speed.draft_gain import draft_cost
from mrs.run.planned_model import PlannedModel, no_report
from mrs.text.text_processor import TextProcessor, read_tokenizer
from mrs.text.tokenizer import Tokenizer


def require_draft_tokens(draft: PlannedModel | None, text: TextProcessor) -> None:
    """Download the draft model's files. Raises UsageError if its tokens are others."""
    if draft is None:
        return
    draft.fetch(no_report)
    tokenizer = read_tokenizer(draft.planner.checkpoint)
    _require_same_tokens(text.tokenizer, tokenizer, draft.request.source.model_id)


def load_draft(
    model: PlannedModel, weights: ModelWeights, report: OnProgress
) -> DraftConfig | None:
    """The draft model of a planned model, if it has one, or the draft head of its `weights`."""
    plan = model.plan
    draft = model.draft or model.head
    if draft is None or plan.draft is None:
        return None
    draft.settle(draft.request, plan.draft)
    return DraftConfig(
        draft.load_drafters(report, shared=None if model.draft else weights),
        plan.draft.model.context_tokens,
        plan.draft.workload.cache,
        draft_cost(plan.speed, plan.draft.speed, plan.draft.model.heads),
    )


def _require_same_tokens(tokenizer: Tokenizer, drafted: Tokenizer, name: str) -> None:
    """Raise UsageError for the first token of the draft model `name` that differs."""
    ours, theirs = (each.backend.get_vocab(with_added_tokens=True) for each in (tokenizer, drafted))
    if ours == theirs:
        return
    token = min(token for _, token in {*ours.items()} ^ {*theirs.items()})
    draft_text, text = (_named(each.text_of(token)) for each in (drafted, tokenizer))
    raise UsageError(
        f"token {token} of the draft model is {draft_text}, and that of the model is {text}",
        where=f"--draft-model {name}",
        hint="a draft model must have the same vocabulary, as smaller models of the family do",
    )


def _named(text: str | None) -> str:
    return "missing" if text is None else repr(text)
