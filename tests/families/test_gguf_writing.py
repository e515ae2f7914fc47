"""GGUF files that are written of every family have what llama.cpp's converter writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from case import PlainCase
from gguf_files import write_gguf
from parity_cases import CASES, REPRESENTATIVES
from saved_models import SavedModel, save_model

from mrs.architecture.family_registry import families
from mrs.architecture.gguf_layout import WRITTEN
from mrs.errors import Unsupported
from mrs.request import ModelSource, RunRequest
from mrs.run.write_gguf import quantize_gguf
from support.suites import kinds

#: Configurations that no key of GGUF files tells from others.
REFUSED = {"mistral-default": "mixer.window", "falcon-two-norms": "style"}
WRITTEN_CASES = [
    case
    for case in CASES
    if case.gguf is not None and case.family in WRITTEN and not isinstance(case, PlainCase)
]
#: Keys that converters write of models without such a thing.
WITHOUT_MEANING = {"ssm.dt_b_c_rms", "rope.scaling.finetuned", "nextn_predict_layers"}
#: What only converters of some architectures write, and readers have by default.
BY_DEFAULT = {
    "jamba": {"rope.freq_base"},
    "mamba": {"rope.freq_base"},
    "mamba2": {"rope.freq_base"},
    "bloom": {"attention.max_alibi_bias"},
    "phi3": {"rope.scaling.original_context_length"},
    "olmo2": {"rope.freq_base_swa"},
}


def contents(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The keys of the architecture, without its prefix, and the tensors as gguf-py reads them."""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    values = {
        key.removeprefix(f"{arch}."): each.contents()
        for key, each in reader.fields.items()
        if key.startswith(f"{arch}.")
    }
    tensors = {each.name: np.asarray(each.data, np.float32).squeeze() for each in reader.tensors}
    return values, tensors


def written(model: SavedModel, path: Path) -> Path:
    quantize_gguf(RunRequest(ModelSource(str(model.folder), "safetensors")), path)
    return path


@pytest.mark.parametrize("case", kinds(WRITTEN_CASES, REPRESENTATIVES))
@pytest.mark.filterwarnings("ignore")
def test_as_the_converter_writes_it(case, tmp_path: Path) -> None:
    model = save_model(case, tmp_path / "model")
    if case.id in REFUSED:
        with pytest.raises(Unsupported, match=REFUSED[case.id]):
            written(model, tmp_path / "ours.gguf")
        assert not list(tmp_path.glob("*.gguf"))
        return
    write_gguf(model, tmp_path / "theirs.gguf")
    keys, tensors = contents(tmp_path / "theirs.gguf")
    our_keys, our_tensors = contents(written(model, tmp_path / "ours.gguf"))
    assert our_tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        np.testing.assert_allclose(our_tensors[name], values, rtol=2e-6, atol=1e-7, err_msg=name)
    expected = keys.keys() - WITHOUT_MEANING - BY_DEFAULT.get(case.gguf or "", set())
    assert {key: our_keys.get(key) for key in expected} == {
        key: value if isinstance(value := keys[key], str) else pytest.approx(value, rel=1e-5)
        for key in expected
    }


def test_other_families_are_refused_by_name(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == "gemma4_text")
    model = save_model(case, tmp_path / "model")
    with pytest.raises(Unsupported, match="the family gemma4_text is not written"):
        written(model, tmp_path / "ours.gguf")
    assert families().keys() > WRITTEN
