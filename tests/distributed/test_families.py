"""Every family makes the same tokens in two processes as in one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from test_exact import talk

from mrs.errors import UsageError

sys.path.append(str(Path(__file__).parents[1] / "families"))
from gemma3n_cases import GEMMA3N
from gemma4_cases import SHARED
from parity_cases import CASES
from saved_models import save_model

from support.suites import suite_of

_BY_ID = {each.id: each for each in CASES}
#: With inputs and streams of their own, shared keys and values, two caches a layer, layers that
#: borrow a choice, and embeddings of another width.
_ODD = [
    *GEMMA3N,
    SHARED[0],
    *(
        _BY_ID[name]
        for name in ("falcon_h1-default", "glm_moe_dsa-lent", "glm_moe_dsa-lent-even", "opt-350m")
    ),
]
_CORE = ("falcon_h1-default", "glm_moe_dsa-lent", GEMMA3N[0].id)
_FIRST = {each.family: each for each in reversed(CASES) if each not in _ODD}
_PARAMETERS = [
    *(pytest.param(each, id=each.id, marks=suite_of(each.id, _CORE)) for each in _ODD),
    *(pytest.param(each, id=each.id, marks=pytest.mark.slow) for each in _FIRST.values()),
]


@pytest.mark.full
@pytest.mark.table("two processes")
@pytest.mark.parametrize("case", _PARAMETERS)
def test_tokens_are_those_of_one_process(case, workers: Workers, tmp_path: Path) -> None:
    folder = save_model(case, tmp_path / "model").folder
    expected = talk(engine_of(single_decoder(request_for(folder, None, 0))))
    with cluster_decoder(request_for(folder, workers.port, 1)) as (decoder, cluster):
        assert 0 < len(cluster.own_layers) < len(decoder.spec.layers)
        assert talk(engine_of(decoder)) == expected


def test_layers_that_share_keys_and_values_stay_together(workers: Workers, tmp_path: Path) -> None:
    folder = save_model(GEMMA3N[0], tmp_path / "model").folder
    request = request_for(folder, workers.port, 1, layer_map="0:3;1:2")
    with pytest.raises(UsageError, match="divides the layers 1 to 4"):
        cluster_decoder(request).__enter__()


def test_a_layer_stays_with_the_one_whose_choice_it_borrows(
    workers: Workers, tmp_path: Path
) -> None:
    folder = save_model(_BY_ID["glm_moe_dsa-lent"], tmp_path / "model").folder
    request = request_for(folder, workers.port, 1, layer_map="0:3;1:2")
    with pytest.raises(UsageError, match="divides the layers 2 to 4"):
        cluster_decoder(request).__enter__()
