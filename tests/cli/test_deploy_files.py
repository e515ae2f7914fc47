"""The files of man/deploy agree with the program: flags, paths, ports and times."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrs.errors import ExitCode, NotReadable
from mrs.server.routes.table import ROUTES
from mrs.server.settings import ServerSettings
from mrs_cli.app import command_tree, main
from mrs_cli.environment import Environment
from mrs_cli.parsing.settings import with_settings
from support.waiting import PATIENCE_S

FOLDER = Path(__file__).parents[2] / "man/deploy"
PATHS = {route.path for route in ROUTES if route.method == "GET"}


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text("a key\n")
    return str(path)


def starts(words: list[str], keys: str) -> bool:
    """Whether a command line gets as far as loading the model, on another address."""

    def load(request: Any, on_progress: Any = None, memory: Any = None) -> Any:
        raise NotReadable("would load")

    stderr = io.StringIO()
    words = [*words, "--host", "127.0.0.1", "-p", "0", "--api-key-file", keys]
    code = main(words, Environment(io.StringIO(), io.StringIO(), stderr, {}, load))
    assert (code, stderr.getvalue()) == (ExitCode.NOT_READABLE, "mrs: error: would load\n")
    return True


def drain_s(file: str) -> float:
    """How long a server with these settings takes to stop."""
    settings = with_settings(["serve", "--config", file], command_tree(), {})
    assert settings.notes == []
    given = dict(each.removeprefix("--").split("=") for each in settings.words[1:])
    return float(given["drain-grace"]) + float(given["drain-timeout"])


def test_the_image_is_not_of_root_and_tells_its_health(keys: str) -> None:
    text = text_of("Dockerfile").replace("\\\n", "")
    steps = [line.split(None, 1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    last = dict(steps)
    assert last["USER"] == "10001"
    (probed,) = re.findall(r"127\.0\.0\.1:(\d+)(/\w+)", last["HEALTHCHECK"])
    assert probed == (last["EXPOSE"], "/health")
    assert "/health" in PATHS
    assert json.loads(last["ENTRYPOINT"]) == ["mrs"]
    assert starts(json.loads(last["CMD"]), keys)


def test_the_unit_starts_a_server_and_lets_it_drain(keys: str) -> None:
    unit = RawConfigParser(strict=False)
    unit.read_string(text_of("mrs.service"))
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    file = str(FOLDER / "mrs.toml")
    assert (program, words) == ("/usr/bin/mrs", ["serve", "--config", "/etc/mrs/mrs.toml"])
    assert starts(["serve", "--config", file], keys)
    assert drain_s(file) < float(unit["Service"]["TimeoutStopSec"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = text_of("mrs.service").replace("/usr/bin/mrs", "/bin/sh")
    unit = tmp_path / "mrs.service"
    unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    command = ["systemd-analyze", "verify", str(unit)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_manifest_probes_what_the_server_has_and_waits_for_its_end(
    keys: str, tmp_path: Path
) -> None:
    found = {each["kind"]: each for each in yaml.safe_load_all(text_of("kubernetes.yaml"))}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = tmp_path / "mrs.toml"
    settings.write_text(found["ConfigMap"]["data"]["mrs.toml"])
    assert container["args"] == ["serve", "--config", "/etc/mrs/mrs.toml"]
    assert starts(["serve", "--config", str(settings)], keys)
    assert drain_s(str(settings)) < pod["terminationGracePeriodSeconds"]
    for name in ("startup", "liveness"):
        assert container[f"{name}Probe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert {"/health", "/ready"} <= PATHS
    assert container["ports"][0]["containerPort"] == 1234
    assert "port = 1234\n" in settings.read_text()
    assert pod["enableServiceLinks"] is False, "a service of the name mrs would set MRS_PORT"
    assert pod["securityContext"]["runAsNonRoot"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts.keys() == {each["name"] for each in pod["volumes"]}
    assert f'api-key-file = "{mounts["keys"]}/keys"' in settings.read_text()


def test_the_proxy_passes_what_the_server_takes(keys: str) -> None:
    text = text_of("nginx.conf")
    (line,) = re.findall(r"mrs (serve .*)", text)
    words = shlex.split(line.replace("FILE", keys).replace("-m ID", "-m demo"))
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert f"unix:{flags['--uds']};" in text
    assert f"location {flags['--root-path']}/ " in text
    assert f"client_max_body_size {ServerSettings().max_body_bytes // 2**20}m;" in text
    with command_tree().commands["serve"].make_context("serve", words[1:]) as context:
        assert context.params["trusted_proxy"] == ("unix",)
