"""Flags in variables and in the file of --config: which one wins, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrs.errors import ExitCode, NotReadable
from mrs_cli.app import command_tree, main
from mrs_cli.environment import Environment
from mrs_cli.parsing.settings import with_settings


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "mrs.toml"
        path.write_text(text)
        return str(path)

    return write


def words_of(line: str, **variables: str) -> list[str]:
    return with_settings(line.split(), command_tree(), variables).words


def run(line: str, **variables: str) -> tuple[int, str]:
    """The exit code and what is said; a model that would be loaded is named with its settings."""

    def load(request: Any, on_progress: Any = None, memory: Any = None) -> Any:
        source, seqs = request.source.model_id, request.max_seqs
        raise NotReadable(f"would load {source}: {seqs} sequences, isq {request.isq}")

    stderr = io.StringIO()
    code = main(line.split(), Environment(io.StringIO(), io.StringIO(), stderr, variables, load))
    return code, stderr.getvalue()


def test_flags_come_before_variables_and_variables_before_the_file(write) -> None:
    file = write('model-id = "demo"\nmax-seqs = 2\nisq = "q4k"\n')
    assert "demo: 2 sequences, isq q4k" in run(f"serve --port 0 --config {file}")[1]
    variables = {"MRS_CONFIG": file, "MRS_MAX_SEQS": "3", "MRS_PORT": "0"}
    assert "demo: 3 sequences, isq q4k" in run("serve", **variables)[1]
    assert "demo: 5 sequences, isq q8_0" in run("serve --max-seqs 5 --isq q8_0", **variables)[1]


@pytest.mark.parametrize(
    ("line", "variables", "found"),
    [
        ("demo hi", {"MRS_MAX_SEQS": "3"}, "--max-seqs=3 demo hi"),
        ("run -m demo hi", {"MRS_CPU": "yes"}, "run --cpu -m demo hi"),
        ("run -m demo hi", {"MRS_CPU": "0"}, "run -m demo hi"),
        ("run -m demo hi", {"MRS_CPU": ""}, "run -m demo hi"),
        ("run -iq -m demo", {"MRS_QUIET": "1", "MRS_VERBOSE": "2"},
         "run --verbose --verbose -iq -m demo"),
        ("serve -m demo", {"MRS_ALLOW_HOST": '["a", "b"]'},
         "serve --allow-host=a --allow-host=b -m demo"),
        ("serve --allow-host c -m demo", {"MRS_ALLOW_HOST": "a"}, "serve --allow-host c -m demo"),
        ("serve --host ::1 -m demo", {"MRS_SERVE_IP": "::2"}, "serve --host ::1 -m demo"),
        ("plan -m demo", {"MRS_PORT": "5"}, "plan -m demo"),
        ("serve plain -m demo", {"MRS_PORT": "5", "MRS_ARCH": "llama"},
         "serve --port=5 plain --arch=llama -m demo"),
        ("-p 5 plain -m demo", {"MRS_MAX_QUEUE": "5", "MRS_ARCH": "llama"},
         "--max-queue=5 -p 5 plain --arch=llama -m demo"),
        ("run -m demo hi", {"MRS_PORT": "5"}, "run -m demo hi"),
        ("run demo hi", {"MRS_MODEL_ID": "other"}, "run demo hi"),
        ("run hi", {"MRS_MODEL_ID": "demo"}, "run --model-id=demo hi"),
        ("save a -m demo", {"MRS_ISQ": "q4k"}, "save a -m demo"),
        ("serve --help", {"MRS_ISQ": "q4k", "MRS_NOTHING": "1"}, "serve --help"),
        ("cache list", {"MRS_JSON": "true"}, "cache list --json"),
    ],
)  # fmt: skip
def test_where_the_words_of_variables_go(line, variables, found) -> None:
    assert words_of(line, **variables) == found.split()


@pytest.mark.parametrize(
    ("line", "variables", "said"),
    [
        ("run -m demo hi", {"MRS_MAX_SEQ": "1"}, "MRS_MAX_SEQ is no setting: did you mean MRS_MAX"),
        ("run -m demo hi", {"MRS_SOMETHING_ELSE": "1"}, "MRS_SOMETHING_ELSE is no setting: unset"),
        ("run -m demo hi", {"MRS_CPU": "maybe"}, "MRS_CPU=maybe is neither true nor false"),
        ("serve -m demo", {"MRS_PORT": "tcp://10.0.0.1:80"}, "0 to 65535 (MRS_PORT)"),
        ("serve -m demo -p 0", {"MRS_KEEP_ALIVE": "soon"}, "soon is no duration (MRS_KEEP_ALIVE)"),
        ("serve -m demo", {"MRS_ALLOW_HOST": "[1"}, "MRS_ALLOW_HOST is no list as in TOML"),
        ("run -m demo hi", {"MRS_VERBOSE": "much"}, "MRS_VERBOSE=much is no number"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(line, variables, said) -> None:
    code, text = run(line, **variables)
    assert code == ExitCode.USAGE
    assert said in text
    assert text.count("\n") == 1


def test_a_file_is_read_as_presets_are(write, tmp_path: Path) -> None:
    file = write("max-seqss = 2\n")
    assert (
        f"{file}, line 1: there is no flag max-seqss: did you mean max-seqs?"
        in run(f"run -m demo --config {file} hi")[1]
    )
    code, text = run(f"run -m demo --config {tmp_path}/none hi")
    assert (code, "there is no file" in text) == (ExitCode.NOT_READABLE, True)
    assert "--config needs a file" in run("run -m demo --config")[1]
    file = write("port = 80\ntemperature = 0\n")
    settings = with_settings(["plan", f"--config={file}", "-m", "demo"], command_tree(), {})
    assert settings.words == ["plan", "-m", "demo"]
    assert settings.notes == [f"{file}: mrs plan takes no --port, --temperature"]
    named = with_settings(["plan", "-m", "demo"], command_tree(), {"MRS_CONFIG": file})
    assert named == (["plan", "-m", "demo"], [], {})
    write('config = "other.toml"\n')
    assert "mrs plan takes no --config" in run(f"plan -m demo --config {file}")[1]


def test_several_models_have_a_config_of_their_own(write, tmp_path: Path) -> None:
    models = tmp_path / "models.json"
    models.write_text('{"a": {"Plain": {"model_id": "demo"}}}')
    file = write("port = 0\nmax-seqs = 7\n")
    line = f"serve --config {file} multi-model --config {models}"
    assert "demo: 7 sequences" in run(line)[1]


def test_own_variables_are_no_flags() -> None:
    own = {"MRS_API_KEY": "k", "MRS_CPU_PATH": "avx2", "MRS_CLUSTER_SECRET": "s"}
    assert words_of("serve -m demo", **own) == ["serve", "-m", "demo"]
