"""A start imports only what it uses: each further module costs about half a millisecond."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mrs_cli.app import command_tree

HEAVY = {"torch", "numpy", "tokenizers", "transformers", "huggingface_hub", "jinja2", "rich"}
HEAVY |= {"prompt_toolkit", "gguf", "safetensors", "psutil", "PIL", "pydantic", "asyncio", "ssl"}
#: Features that neither a plan of a text model in safetensors files nor the help uses.
UNUSED = HEAVY | {
    "mrs.architecture.describe_gguf",
    "mrs.architecture.vision",
    "mrs.architecture.vision_spec",
    "mrs.engine",
    "mrs.families.gpt_oss",
    "mrs.families.vision",
    "mrs.kernels.cpu.library",
    "mrs.run.loaded_model",
    "mrs.plan.memory.vision_sizes",
    "mrs.plan.placement.fastest",
    "mrs.plan.placement.spread",
    "mrs.plan.report.document",
    "mrs.plan.report.reconcile",
    "mrs.plan.report.replay",
    "mrs.plan.report.fit",
    "mrs.plan.report.remedies",
    "mrs.source.gguf_header",
    "mrs.source.http_client",
    "mrs.source.hub",
    "mrs.text",
    "mrs_cli.chat",
    "mrs_cli.render.plan.measured_table",
    "mrs_cli.render.plan.plan_drawing",
}
OF_THE_HELP = UNUSED | {"mrs.architecture", "mrs.devices", "mrs.run.model_loader", "mrs.plan"}
OF_THE_HELP |= {"mrs.source", "mrs_cli.commands", "ctypes", "logging", "platformdirs"}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "unused", "used"),
    [
        (["--help"], OF_THE_HELP, "mrs_cli.parsing"),
        (["plan", "--help"], OF_THE_HELP, "mrs_cli.parsing"),
        (["plan", "--dry-run", "-m", "demo"], UNUSED, "mrs.families.llama"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_start_imports_only_what_it_uses(process_env, arguments, unused, used):
    program = (
        "import sys; from mrs_cli.app import main; code = main(); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=process_env,
        capture_output=True,
        check=True,
        text=True,
    )
    imported = set(ran.stderr.splitlines()[-1].split())
    assert used in imported
    assert imported & unused == set()


def test_commands_are_built_at_their_first_use():
    tree = command_tree.__wrapped__()
    assert "plan" in list(tree.commands)
    assert not tree.commands._built
    assert tree.commands["gguf"] is tree.commands["gguf"]
    assert list(tree.commands._built) == ["gguf"]
