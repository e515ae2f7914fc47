"""The Python examples of the peer's guide run as they are, except for the import and the models."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import mrs
from support.model_files import DEMO
from support.suites import first

DOCUMENT = Path(__file__).with_name("direct_gpu_inference.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def stand_ins(random_model: Callable[..., Path]) -> dict[str, str]:
    """What is loaded for each model that the guide names."""
    return {
        "mistralai/Mistral-7B-Instruct-v0.1": str(random_model("mistral", sliding_window=64)),
        "gradientai/Llama-3-8B-Instruct-262k": str(random_model("llama", num_hidden_layers=32)),
        "meta-llama/Llama-3-70B-Instruct": "demo",
        "HuggingFaceH4/zephyr-7b-beta": str(DEMO),
        "TheBloke/zephyr-7B-beta-GGUF": str(DEMO),
        "zephyr-7b-beta.Q5_0.gguf": "demo.gguf",
        "microsoft/Phi-3-mini-4k-instruct": str(random_model("phi3")),
    }


def test_the_guide_has_its_examples() -> None:
    assert len(SNIPPETS) == 5
    assert all("from mistralrs import" in snippet for snippet in SNIPPETS)


@pytest.mark.parametrize("number", first(2, range(5)))
def test_an_example_runs(
    number: int, stand_ins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    code = SNIPPETS[number].replace("from mistralrs import", "from mrs import")
    named = [name for name in stand_ins if f'"{name}"' in code]
    assert named
    for name in named:
        code = code.replace(f'"{name}"', repr(stand_ins[name]))
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(code, f"example {number}", "exec"), names)  # noqa: S102
    response, runner = names["res"], names["runner"]
    assert isinstance(response, mrs.ChatCompletionResponse)
    assert isinstance(runner, mrs.Runner)
    choice = response.choices[0]
    assert shown.getvalue() == choice.message.content + "\n"
    asked = int(re.findall(r"max_tokens=(\d+)", code)[0])
    made = response.usage.completion_tokens
    assert made == asked if choice.finish_reason == "length" else 0 < made < asked
    plan = runner.plan()
    if "device_map" in code:
        assert plan.layer_devices == (0,) * 16 + (1,) * 16
    if "in_situ_quant" in code:
        assert plan.isq == "Q4_K"
    runner.close()
