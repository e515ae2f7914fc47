"""Computes windows, and compares the logits of a model with those of the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from mrs.cache.sequence_cache import SequenceCache
from mrs.load.load import load_weights
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.layer_stack import activation_dtype
from mrs.model.output_head import OutputHead, head_parameters
from mrs.request import PREFILL_CHUNK_TOKENS
from mrs.run.planned_model import PlannedModel


class ReferenceHead:
    """The output head of the reference on its device, alone."""

    def __init__(self, head: OutputHead, device: torch.device, dtype: torch.dtype) -> None:
        self._head, self._device, self._dtype = head, device, dtype

    def __call__(self, states: Tensor) -> Tensor:
        """States (N, hidden) to logits (N, vocab) float32."""
        return self._head(states.to(self._device, self._dtype))


def reference_head(model: PlannedModel) -> ReferenceHead:
    """Load the head of a planned model, and nothing else of it. Raises MrsError."""
    plan, spec = model.plan, model.planner.description.spec
    names = head_parameters(spec)
    device = torch.device(plan.devices[plan.primary_device].torch_device)
    parameters = [each for each in model.planner.description.parameters if each.name in names]
    weights = load_weights(
        model.planner.checkpoint,
        parameters,
        plan.storage,
        {each.name: device for each in parameters},
        lambda name, size_bytes: None,
    )
    dtype = activation_dtype(device, TORCH_DTYPES[plan.dense.name])
    return ReferenceHead(OutputHead(spec, weights), device, dtype)


class ReferenceLogits:
    """The reference's logits of a window, made of its states (scored, hidden) some at a time."""

    def __init__(self, head: ReferenceHead, states: npt.NDArray[Any], most_logits: int) -> None:
        self._head, self._states, self._most = head, torch.tensor(states), most_logits
        self._rows, self._logits = range(0), torch.empty(0)

    def __getitem__(self, rows: slice) -> Tensor:
        """Logits (R, vocab) of these rows; they are asked for in order."""
        if not (self._rows.start <= rows.start and rows.stop <= self._rows.stop):
            self._logits = torch.empty(0)  # which frees the last ones
            some = self._head(self._states[rows])
            more = max(len(some), self._most // some.shape[1])
            self._rows = range(rows.start, min(rows.start + more, len(self._states)))
            self._logits = (
                some
                if len(self._rows) == len(some)
                else self._head(self._states[self._rows.start : self._rows.stop])
            )
        first = self._rows.start
        return self._logits[rows.start - first : rows.stop - first]


def values_of(logits: Tensor, targets: Tensor, reference: Tensor | None) -> Tensor:
    """The values (R, 4) float64 of positions, as `summary` names them; (R, 1) without a reference.

    Logits (R, vocab) of both models and the tokens (R,) that follow. All is summed in float64: of
    two models that are nearly the same, float32 would show its own rounding.
    """
    ours = logits.double().log_softmax(-1)
    targets = targets.to(ours.device)[:, None]
    losses = -ours.gather(1, targets)
    if reference is None:
        return losses.cpu()
    exact = reference.to(ours.device).double().log_softmax(-1)
    divergence = (exact.exp() * (exact - ours)).sum(-1, keepdim=True)
    same = ours.argmax(-1, keepdim=True) == exact.argmax(-1, keepdim=True)
    return torch.cat([losses, -exact.gather(1, targets), divergence, same.double()], 1).cpu()


class _Part(NamedTuple):
    """Tokens of a window for one forward pass, and the rows of them before scored tokens."""

    ids: Sequence[int]
    rows: range


def _parts(ids: Sequence[int], scored: int) -> Iterator[_Part]:
    """All tokens but the last, as the token after it is not known."""
    fed = ids[:-1]
    first_scored = len(fed) - scored
    for start in range(0, len(fed), PREFILL_CHUNK_TOKENS):
        part = fed[start : start + PREFILL_CHUNK_TOKENS]
        yield _Part(part, range(min(max(first_scored - start, 0), len(part)), len(part)))


def _fed(cache: SequenceCache, part: _Part, ids: Sequence[int], rows: Sequence[int]) -> Any:
    return forward_batch([SequenceInput(cache, part.ids, length=len(ids), scored_rows=rows)])


def window_states(decoder: Decoder, ids: Sequence[int], scored: int) -> npt.NDArray[Any]:
    """The hidden states (scored, hidden) float32 before the head, at positions before the last."""
    found: list[Tensor] = []
    cache = decoder.new_cache(len(ids), PREFILL_CHUNK_TOKENS)
    for part in _parts(ids, scored):
        states: list[Tensor] = []
        decoder.forward(_fed(cache, part, ids, ()), [cache], observe=states.append)
        found += [each[part.rows.start : part.rows.stop].float().cpu() for each in states]
    values: npt.NDArray[Any] = torch.cat(found).numpy()
    return values


def window_values(
    decoder: Decoder, ids: Sequence[int], scored: int, reference: ReferenceLogits | None
) -> npt.NDArray[Any]:
    """The values (scored, columns) of a window, as `values_of` makes them."""
    targets = torch.tensor(ids[-scored:])
    found: list[Tensor] = []
    cache = decoder.new_cache(len(ids), PREFILL_CHUNK_TOKENS)

    def score(piece: slice, logits: Tensor) -> None:
        first = sum(map(len, found))  # pieces come in order
        rows = slice(first, first + piece.stop - piece.start)
        other = None if reference is None else reference[rows]
        found.append(values_of(logits, targets[rows], other))

    for part in _parts(ids, scored):
        decoder.forward(_fed(cache, part, ids, part.rows), [cache], score=score)
    values: npt.NDArray[Any] = torch.cat(found).numpy()
    return values
