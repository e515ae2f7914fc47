"""What processes of one user tell each other of memory that they will take."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrs.process.promises import Promise, promised_to_others
from mrs.request import ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from mrs.units import GIB

HELD = 3 * GIB
PROGRAM = f"""
import sys
from mrs.process.promises import Promise
promise = Promise({HELD})
print("ready", flush=True)
for line in sys.stdin:
    promise.withdraw()
    print("withdrawn", flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for promises; models that other tests have loaded promise nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Promise, "_all", {})
    return tmp_path / "mrs" / "running"


@pytest.fixture
def other(cache: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_the_promise_of_another_process_lacks_what_it_has_already(
    other: subprocess.Popen[str],
) -> None:
    size_bytes, processes = promised_to_others()
    assert processes == 1
    assert HELD - GIB < size_bytes < HELD


def test_what_is_withdrawn_is_free_again(other: subprocess.Popen[str], cache: Path) -> None:
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write("go\n")
    other.stdin.flush()
    assert other.stdout.readline() == "withdrawn\n"
    assert promised_to_others() == (0, 0)
    assert not list(cache.iterdir())


def test_a_process_that_was_killed_promises_nothing(
    other: subprocess.Popen[str], cache: Path
) -> None:
    other.kill()
    other.wait()
    assert len(list(cache.iterdir())) == 1
    assert promised_to_others() == (0, 0)
    assert not list(cache.iterdir()), "its file is gone"


@pytest.mark.parametrize("change", [{"started": 1.0}, {"bytes": "many"}, {"bytes": -1}, None])
def test_the_file_of_a_process_with_the_same_id_or_a_damaged_one_is_deleted(
    other: subprocess.Popen[str], cache: Path, change: dict[str, object] | None
) -> None:
    (path,) = cache.iterdir()
    entry = json.loads(path.read_text())
    path.write_text("{" if change is None else json.dumps({**entry, **change}))
    assert promised_to_others() == (0, 0)
    assert not path.exists()


def test_own_promises_are_no_others(cache: Path) -> None:
    promises = [Promise(GIB), Promise(2 * GIB)]
    (path,) = cache.iterdir()
    assert json.loads(path.read_text())["bytes"] == 3 * GIB
    assert promised_to_others() == (0, 0)
    promises[0].withdraw()
    promises[0].withdraw()
    assert json.loads(path.read_text())["bytes"] == 2 * GIB
    promises[1].withdraw()
    assert not path.exists()


def test_plans_leave_the_memory_that_others_will_take(
    other: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    request = RunRequest(ModelSource("demo", "safetensors"), cpu=True)
    with caplog.at_level(logging.WARNING):
        beside = ModelLoader(request).plan
    assert "GiB of memory are left to 1 other process of mrs" in caplog.text
    other.kill()
    other.wait()
    alone = ModelLoader(request).plan
    more = alone.devices[0].available_bytes - beside.devices[0].available_bytes
    # Other programs of the machine come and go meanwhile.
    assert more > HELD / 3


def test_a_loaded_model_is_a_promise_until_it_is_closed(cache: Path) -> None:
    loaded = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load()
    (path,) = cache.iterdir()
    assert json.loads(path.read_text())["bytes"] == loaded.plan.host_bytes
    loaded.close()
    assert not path.exists()
