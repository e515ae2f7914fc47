"""Processes that share layers have the weights of the whole model, cut at quantized blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mrs.distributed.shard import RankPlan, one_device_plan, rank_plans
from mrs.errors import Unsupported
from mrs.load.tensor_reader import TensorReader
from mrs.plan.planner import Planner
from mrs.quantization.gguf import decode
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.source.weights import Weights
from mrs.weights.binding import Parameter


def planned(folder: Path) -> tuple[Planner, list[RankPlan]]:
    request = RunRequest(ModelSource(str(folder), "safetensors"), cpu=True, max_seq_len=100)
    planner = ModelLoader(request).planner
    return planner, rank_plans(planner, one_device_plan(planner, request), request, 2)


def values(parameter: Parameter, planner: Planner) -> Tensor:
    with Weights(planner.checkpoint) as files:
        chunks = [
            decode(rows, stored).clone()
            for piece in parameter.pieces
            for rows, stored in TensorReader(files).chunks(piece, parameter.columns)
        ]
    return torch.cat(chunks)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "id",
    ["gptq-asym", "gptq-3", "awq", "compressed-4-zeros", "bnb-nf4", "hqq-4", "mlx-6-64-bfloat16"],
)
def test_shares_are_the_whole_weight(id: str, checkpoints) -> None:
    planner, plans = planned(checkpoints(id).packed)
    own = [{each.name: each for each in plan.planner.description.parameters} for plan in plans]
    axes = set()
    for parameter in planner.description.parameters:
        if parameter.role != "matrix":
            continue
        shares = [values(each[parameter.name], planner) for each in own]
        axis = int(shares[0].shape[1] < parameter.columns)
        assert torch.equal(torch.cat(shares, axis), values(parameter, planner)), parameter.name
        axes.add(axis)
    assert axes == {0, 1}


def test_columns_in_an_order_of_their_own_are_refused(checkpoints) -> None:
    with pytest.raises(Unsupported, match=r"columns of GPTQ in an order .* cannot be .* --workers"):
        planned(checkpoints("gptq-act-order").packed)
