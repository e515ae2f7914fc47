"""What a model makes of the hidden states of a text: an embedding, or scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from mrs.errors import Unsupported, UsageError
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: Which hidden state stands for a text: that of the first or the last token, the mean of all, or
#: the largest value of each dimension.
PoolingKind = Literal["cls", "mean", "last", "max"]
POOLING_KINDS: tuple[PoolingKind, ...] = get_args(PoolingKind)
#: What makes probabilities of scores: of classes that exclude each other, or not; or nothing.
ScoreScale = Literal["softmax", "sigmoid", "identity"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]


@dataclass(frozen=True)
class Dense:
    """norm(activation(W x + b)), with a norm only in some models."""

    rows: int
    columns: int
    bias: bool = True
    activation: DenseActivation = "identity"
    norm: Norm | None = None


@dataclass(frozen=True)
class Pooler:
    """The steps from the hidden states of a text to one vector.

    pooling         hidden states to one vector
    dense           layers that transform it
    normalize       whether its length becomes 1
    size            values of the vector
    dimensions      smaller sizes: the model was trained so that the first values suffice
    is_score        whether the values are scores, before their sigmoid, and no embedding
    labels          the names of the classes that the scores are of
    scale           what makes probabilities of the scores of classes
    is_difference   whether the vector is the first of two classes less the second
    prompts         texts that go before a text, by name: for questions, for documents
    default_prompt  the name of the prompt if a request names none; None for no prompt
    lowercase       whether texts become lower case before anything else
    states_dense    how many of the dense layers transform all hidden states before the pooling
    """

    pooling: PoolingKind = "mean"
    dense: tuple[Dense, ...] = ()
    normalize: bool = True
    size: int = 0
    dimensions: tuple[int, ...] | range = ()
    is_score: bool = False
    labels: tuple[str, ...] = ()
    scale: ScoreScale = "softmax"
    is_difference: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    lowercase: bool = False
    states_dense: int = 0

    def slots(self) -> Iterator[Slot]:
        """The weights of the dense layers."""
        for index, dense in enumerate(self.dense):
            yield Slot(f"dense.{index}", (dense.rows, dense.columns), "tower", dense.bias)
            if dense.norm is not None:
                yield from norm_slots(f"dense.{index}.norm", dense.rows, dense.norm)

    @property
    def has_classes(self) -> bool:
        """Whether the scores are of classes; a single one may be that of a document, too."""
        return self.is_score and bool(self.labels) and not self.is_difference

    @property
    def product(self) -> str:
        """What comes out, in one word."""
        return "scores" if self.is_score else "embeddings"

    @property
    def commands(self) -> str:
        """The ways to use such a model."""
        if not self.is_score:
            return "mrs embed or /v1/embeddings"
        classifies = self.has_classes and len(self.labels) > 1
        return "mrs classify or /v1/classify" if classifies else "mrs rerank or /v1/rerank"

    def prompted(self, text: str, name: str | None) -> str:
        """The text after the prompt of that name. Raises UsageError."""
        prompts, name = dict(self.prompts), self.default_prompt if name is None else name
        if name is not None and name not in prompts:
            known = ", ".join(prompts) or "none"
            raise UsageError(f"the model has no prompt {name!r}", hint=f"there is {known}")
        whole = text if name is None else prompts[name] + text
        return whole.lower() if self.lowercase else whole

    def check_dimensions(self, dimensions: int) -> None:
        """Raise Unsupported unless an embedding can be shortened to this size."""
        if dimensions == self.size or dimensions in self.dimensions:
            return
        if isinstance(self.dimensions, range):
            known = f"1 to {self.size}"
        else:
            known = ", ".join(map(str, (*self.dimensions, self.size)))
        raise Unsupported(
            f"embeddings of {dimensions} values are not supported",
            hint=f"the model's config.json says {known}",
        )


@dataclass(frozen=True)
class TokenScore:
    """score = logit of `yes_id` - logit of `no_id`, or the first alone without a `no_id`."""

    yes_id: int
    no_id: int | None = None


@dataclass(frozen=True)
class Ranking:
    """What comes with a reranker.

    tokens        the tokens of its answer; None for the words yes and no, or if it has a classifier
    instruction   the task, which the chat template gets as a system message
    begins_reply  whether the chat template has to begin the reply
    """

    tokens: TokenScore | None = None
    instruction: str | None = None
    begins_reply: bool = False
