"""What Tab offers in a shell."""

from __future__ import annotations

import subprocess
import sys

import pytest

ID = "ORG/NAME"


def lay(cache, model_id: str, *names: str, revision: str = "0" * 40) -> None:
    """A model in a cache as the hub library lays it out."""
    repository = cache / f"models--{model_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for name in names:
        (snapshot / name).write_bytes(b"{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)


@pytest.fixture
def offered(process_env, tmp_path):
    """`offered("mrs --isq q4")` are the values that Tab offers for the last word."""

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        program = "import sys, mrs_cli.app as a\ntry:\n a.main()\nfinally:\n "
        program += "print(*{n.split('.')[0] for n in sys.modules}, file=sys.stderr)"
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={
                **process_env,
                "HF_HUB_CACHE": str(tmp_path),
                "_MRS_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            },
            cwd=tmp_path,
            capture_output=True,
            check=False,
            text=True,
        )
        heavy = {"torch", "rich", "tokenizers", "huggingface_hub", "numpy", "prompt_toolkit"}
        assert not heavy & set(ran.stderr.split())
        return ran.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("mrs plain -a qwen2", ["qwen2", "qwen2_moe", "qwen2_5_vl", "qwen2_vl"]),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                ("mrs gguf --dtype b", ["bf16"]),
                ("mrs --thinking f", ["false"]),
                ("mrs --strategy fa", ["fastest"]),
                ("mrs ca", ["cache"]),
            )
        ),
    ],
)
def test_values_of_flags(offered, line, values):
    assert offered(line) == values


@pytest.mark.full
def test_models(offered, tmp_path):
    lay(tmp_path, "org/first", "config.json", "model.safetensors")
    lay(tmp_path, "org/second-GGUF", "a.gguf")
    lay(tmp_path, "org/cut", "config.json")
    for folder, name in (("plain", "config.json"), ("quantized", "b.gguf"), ("else", "notes")):
        (tmp_path / "here" / folder).mkdir(parents=True)
        (tmp_path / "here" / folder / name).write_bytes(b"{}")
    assert offered("mrs plain -m ") == ["demo", "demo-vision", "org/first"]
    assert offered("mrs gguf -m org") == ["org/second-GGUF"]
    assert offered("mrs plain -m here/") == ["here/plain"]
    assert offered("mrs gguf -m here/") == ["here/quantized"]
    assert offered("mrs gguf -m here/quantized/") == ["here/quantized/b.gguf"]
    assert offered("mrs plan -m org/") == ["org/first", "org/second-GGUF"]


@pytest.mark.full
def test_a_model_is_offered_where_it_needs_no_flag(offered):
    for line in ("mrs run dem", "mrs serve run dem"):
        assert offered(line) == ["demo", "demo-vision"]
    assert offered("mrs sho") == ["show"]
