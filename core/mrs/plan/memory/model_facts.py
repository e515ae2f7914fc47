"""The model's own figures in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mrs.architecture.description import Description
from mrs.layers.joined_input.spec import JoinedInput
from mrs.quantization.storage import Storage
from mrs.source.checkpoint import Checkpoint, TensorInfo


@dataclass(frozen=True)
class ModelFacts:
    """Figures of a model, and the tensors in its files.

    `makes_replies` is false for one that embeds or ranks texts; `is_head` says that it is the
    draft head of another model, with which it shares weights and tokenizer. `merged_bytes` of
    `file_bytes` are matrices of adapters that are added to the weights.
    """

    model_id: str
    container: str
    family: str
    parameters: int
    layers: int
    vocabulary: int
    context_tokens: int
    file_bytes: int
    tensors: Mapping[str, TensorInfo]
    makes_replies: bool = True
    is_head: bool = False
    merged_bytes: int = 0

    @property
    def heads(self) -> int:
        """The draft heads that the model consists of, each of one layer; 0 for any other model."""
        return self.layers if self.is_head else 0

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the table of tensors: names, shapes, formats and sizes."""
        from hashlib import sha256

        table = sha256()
        for name, tensor in sorted(self.tensors.items()):
            row = f"{name} {tensor.format.name} {tensor.shape} {tensor.size_bytes}\n"
            table.update(row.encode())
        return table.hexdigest()


def model_facts(checkpoint: Checkpoint, description: Description) -> ModelFacts:
    return ModelFacts(
        model_id=checkpoint.model_id,
        container=checkpoint.container,
        family=description.spec.family,
        parameters=sum(prod(each.shape) for each in description.parameters if not each.is_shared),
        layers=len(description.spec.layers),
        vocabulary=description.spec.vocab_size,
        context_tokens=description.spec.context_tokens,
        file_bytes=checkpoint.total_bytes,
        tensors=checkpoint.tensors,
        makes_replies=description.spec.pooler is None,
        is_head=isinstance(description.spec.input, JoinedInput),
        merged_bytes=sum(checkpoint.tensors[name].size_bytes for name in _merged(description)),
    )


def _merged(description: Description) -> set[str]:
    """The tensors of adapters that are added to weights."""
    return {
        piece.tensor
        for parameter in description.parameters
        for update in parameter.updates
        for piece in (*update.down, *update.up, *update.magnitude)
    }


def weights_format(storage: Mapping[str, Storage]) -> str:
    """The formats of the matrices, the one with most bytes first: `Q4_K + Q6_K`."""
    names = _format_names(storage)
    return " + ".join(names[:2]) + (" + \u2026" if len(names) > 2 else "")


def main_format(storage: Mapping[str, Storage]) -> str:
    """The format of most bytes of matrices; "" if there are none."""
    return next(iter(_format_names(storage)), "")


def _format_names(storage: Mapping[str, Storage]) -> list[str]:
    """The formats of the matrices, the one with most bytes first."""
    totals: dict[str, int] = {}
    for name, stored in storage.items():
        if name.endswith(".weight") and "norm" not in name:
            totals[stored.format.name] = totals.get(stored.format.name, 0) + stored.size_bytes
    return sorted(totals, key=lambda format: -totals[format])
