"""Planners of the processes that have a shard of every layer each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from mrs.architecture.shards import FLAG, PIPELINE, shard_model
from mrs.errors import Unsupported
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.weights.binding import Parameter


class ShardPlanner(NamedTuple):
    """The planner of a process's shard of the model, and its rows of each table of tokens."""

    planner: Planner
    rows: Mapping[str, range]


def shard_planners(planner: Planner, plan: Plan, ranks: int) -> list[ShardPlanner]:
    """The shards of `ranks` processes of a model whose `plan` is for one process.

    Raises Unsupported for what cannot be shared, and UsageError for too many ranks.
    """
    return [
        ShardPlanner(
            Planner(
                planner.checkpoint,
                shard.description,
                planner.devices,
                cpu_packs=planner.cpu_packs,
                corrections=planner.corrections,
            ),
            shard.rows,
        )
        for shard in shard_model(planner.description, ranks, _BlockColumns(planner, plan))
    ]


def sums_of_stage(layers: int, *, is_first: bool) -> int:
    """How often the processes of a stage add up for a token.

    That is twice in a layer, once for the embeddings or for hidden states that come to the stage,
    and once when the logits are gathered.
    """
    return 2 * layers + (2 if is_first else 1)


@dataclass(frozen=True)
class _BlockColumns:
    """Gives the columns that the blocks of a parameter have in the file and in memory."""

    planner: Planner
    plan: Plan

    def __call__(self, parameter: Parameter) -> int:
        tensors = self.planner.checkpoint.tensors
        formats = [self.plan.storage[parameter.name].format]
        for piece in parameter.pieces:
            if piece.packed is None:
                formats.append(tensors[piece.tensor].format)
                continue
            layout = piece.packed.layout(tensors, parameter.columns)
            if layout.is_permuted or not piece.packed.scheme.shares_columns:
                order = " in an order of their own" if layout.is_permuted else ""
                what = f"columns of {piece.packed.scheme.name}{order}"
                raise Unsupported(
                    f"{what} cannot be shared by processes yet", where=FLAG, hint=PIPELINE
                )
            formats.append(layout.format)
        return lcm(*(format.block_elements for format in formats))
