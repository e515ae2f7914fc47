"""EXAONE 3 as its published folders spell the config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dense_cases import DENSE

from mrs.architecture.describe import describe
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

#: Keys of the published configs, which have no `head_dim` where it follows from other keys.
SPELLINGS = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def test_published_spelling(references, tmp_path: Path) -> None:
    case = next(case for case in DENSE if case.id == "exaone-llama3")
    folder = references(case).folder
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    del config["head_dim"], config["attention_bias"], config["mlp_bias"]
    published = {SPELLINGS.get(key, key): value for key, value in config.items()}
    published |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    shutil.copy(folder / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(published))
    found, expected = (
        describe(open_checkpoint(ModelSource(str(each), "safetensors")))
        for each in (tmp_path, folder)
    )
    assert found == expected
