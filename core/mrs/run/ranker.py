"""Scores documents by how well they answer a question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mrs.architecture.pooler import Pooler, Ranking, TokenScore
from mrs.engine.prompt import Prompt
from mrs.errors import Unsupported
from mrs.text.text_limit import TextLimit
from mrs.text.text_processor import TextProcessor

#: What a model without a template for pairs is asked, in the words that Qwen3-Reranker learnt.
_TASK = "Given a web search query, retrieve relevant passages that answer the query"
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_QUESTION = "<Instruct>: {}\n<Query>: {}\n<Document>: {}"
_ANSWERS = ("yes", "no")
#: A sigmoid of more is 0 or 1.
_MOST_LOGIT = 500.0


class Ranked(NamedTuple):
    """The index of a document, its score from 0 to 1, and the tokens of its prompt."""

    document: int
    score: float
    tokens: int


class RankingPrompts:
    """Makes the prompts of questions and documents for one model.

    A reranker has a classifier, or it answers yes or no: then the logits of these tokens are the
    score, and any chat model can be asked. Raises Unsupported for a model that does not rank.
    """

    def __init__(
        self,
        text: TextProcessor,
        pooler: Pooler | None,
        ranking: Ranking | None,
        limit: TextLimit,
    ) -> None:
        self._text = text
        self._ranking = ranking or Ranking()
        self._limit = limit
        is_unfit = text.template is None if pooler is None else not pooler.is_score
        if is_unfit:
            raise Unsupported("the model does not rank texts", hint="load a reranker")
        self._tokens = None if pooler is not None else self._ranking.tokens or _answers(text)

    def prompt(
        self, query: str, document: str, *, instruction: str | None = None, truncate: bool = False
    ) -> Prompt:
        """The prompt of a question and a document.

        The `instruction` says what a good answer is; by default as the model's files say. With
        `truncate`, a document that exceeds the context loses its end.
        """
        instruction = instruction or self._ranking.instruction
        self._limit.check(query, document, instruction or "", must_fit=not truncate)
        most_tokens = self._limit.context_tokens if truncate else None
        is_framed = self._text.knows_pairs or self._text.pair_frame is not None
        if self._tokens is None and not is_framed:
            if instruction is not None:
                query = instruction + query
            whole = self._text.tokenizer.encode_whole(query, document, most_tokens=most_tokens)
            return Prompt(whole.ids, token_types=whole.types)

        def ids(document: str) -> list[int]:
            return self._ids(query, document, instruction)

        if most_tokens is not None:
            # The logits after a prompt need room for the token that they would choose.
            document = self._cut(document, ids, most_tokens - (self._tokens is not None))
        return Prompt(ids(document), scored=self._tokens)

    def _ids(self, query: str, document: str, instruction: str | None) -> list[int]:
        if self._text.knows_pairs:
            begins_reply = self._ranking.begins_reply
            return self._text.pair_ids(query, document, instruction, begins_reply=begins_reply)
        if self._text.pair_frame is not None and instruction is None:
            return self._text.framed_ids(query, document)
        question = _QUESTION.format(instruction or _TASK, query, document)
        return self._text.prompt_ids(
            [{"role": "system", "content": _JUDGE}, {"role": "user", "content": question}],
            thinking=False,
        )

    def _cut(self, document: str, ids: Callable[[str], list[int]], most_tokens: int) -> str:
        """The document, or the longest beginning of it whose prompt has at most `most_tokens`."""
        kept = self._text.tokenizer.encode(document, allow_special=False)
        while kept and (excess := len(ids(document)) - most_tokens) > 0:
            kept = kept[:-excess]
            document = self._text.tokenizer.decode(kept)
        return document


def best_first(vectors: Iterable[Sequence[float]]) -> list[tuple[int, float]]:
    """(index, score) of what a model gave for documents. Raises Unsupported for several classes."""
    scores = [relevance(values) for values in vectors]
    return sorted(enumerate(scores), key=lambda pair: -pair[1])


def _answers(text: TextProcessor) -> TokenScore:
    yes, no = map(text.tokenizer.backend.token_to_id, _ANSWERS)
    if yes is None or no is None:
        raise Unsupported(
            "the model does not rank texts: it has no tokens yes and no", hint="load a reranker"
        )
    return TokenScore(yes, no)


def relevance(values: Sequence[float]) -> float:
    """The sigmoid of a model's only score. Raises Unsupported for a model of several classes."""
    if len(values) != 1:
        raise Unsupported(
            f"the model has {len(values)} classes and ranks nothing",
            hint="use mrs classify or /v1/classify",
        )
    return 1 / (1 + math.exp(-max(min(values[0], _MOST_LOGIT), -_MOST_LOGIT)))
