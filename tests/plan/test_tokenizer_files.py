"""Models whose tokenizer is in another file than tokenizer.json run, here and in a UQFF folder."""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mrs.request import ModelSource, RunRequest, Sampling
from mrs.run.model_loader import ModelLoader
from support.model_files import write_model

RECORD = Path(__file__).parents[1] / "text" / "vocabulary_files.json"
MODELS: dict[str, dict[str, Any]] = json.loads(RECORD.read_text("utf-8"))["models"]
TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1200,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["llama", "tekken", "kimi", "unigram"])
def test_a_model_runs_with_the_tokenizer_in_its_file(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "model", TINY, "BF16")
    data = zlib.decompress(base64.b64decode(MODELS[name]["data"]))
    (folder / MODELS[name]["file"]).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(MODELS[name]["config"]))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    out = tmp_path / "out"
    source = ModelSource(str(folder), "safetensors")
    sampling = Sampling(temperature=0, max_tokens=3)
    loader = ModelLoader(RunRequest(source, cpu=True, isq="q8_0", write_uqff=str(out / "m.uqff")))
    with closing(loader.load()) as model:
        *_, end = model.stream_chat([{"role": "user", "content": "lazy dogs"}], sampling)
        tokens = model.tokenizer.encode("lazy dogs", allow_special=False)
    assert end.usage.prompt_tokens == len(tokens)
    again = ModelSource(str(out), "safetensors", uqff=("m.uqff",))
    with closing(ModelLoader(RunRequest(again, cpu=True)).load()) as model:
        assert model.tokenizer.encode("lazy dogs", allow_special=False) == tokens
