"""An unknown architecture's error suggests what there is, and never the same word again."""

from __future__ import annotations

import pytest

from mrs.architecture.family_registry import families, family_by_gguf_arch, family_by_name
from mrs.architecture.quantization_methods import read_quantization
from mrs.config.config import Config
from mrs.errors import Unsupported


@pytest.mark.parametrize("name", ["mistral", "mixtral", "internlm3", "ministral"])
def test_a_family_that_gguf_files_call_llama(name: str) -> None:
    with pytest.raises(Unsupported, match=f"no GGUF file has the architecture '{name}'") as error:
        family_by_gguf_arch(name)
    assert "as llama" in str(error.value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("qwen3_moe", "qwen3moe"),
        ("gpt_oss", "gpt-oss"),
        ("glm4_moe", "glm4moe"),
        ("phi", "phi2"),
        ("falcon_h1", "falcon-h1"),
    ],
)
def test_the_name_of_a_family_suggests_that_of_its_files(name: str, right: str) -> None:
    with pytest.raises(Unsupported, match=f"the most similar names are {right}"):
        family_by_gguf_arch(name)


def test_suggestions_are_names_of_gguf_files() -> None:
    known = {
        name for f in families().values() for name in (f.gguf_arch, *f.other_gguf_archs) if name
    }
    for name in ("whale", "qwen4", "llama5"):
        with pytest.raises(Unsupported) as error:
            family_by_gguf_arch(name)
        suggested = str(error.value).rpartition("names are ")[2].split(", ")
        assert set(suggested) <= known
        assert len(suggested) == 5


@pytest.mark.parametrize("key", ["quantization_config", "quantization"])
@pytest.mark.parametrize("value", [{}, None])
def test_an_empty_quantization_is_none(key: str, value: object) -> None:
    assert read_quantization(Config({key: value}, "here")) is None
    with pytest.raises(Unsupported, match="the quantization None"):
        read_quantization(Config({key: {"bits": 4}}, "here"))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("kimi_k2", "deepseek_v3"),
        ("AXK1", "axk1"),
        ("exaone4_5_text", "exaone4"),
        ("youtu_llm", "youtu"),
        ("bailing_moe", "bailing_moe_v2"),
    ],
)
def test_names_of_published_files(name: str, family: str) -> None:
    assert family_by_name(name).name == family


def test_ling_1_is_refused_by_what_it_has() -> None:
    family = family_by_name("bailing_moe")
    config = Config({**family.defaults, "score_function": "softmax"}, "here")
    with pytest.raises(Unsupported, match="score_function"):
        family.read(config)
