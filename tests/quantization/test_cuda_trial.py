"""CUDA kernels are tried once, in a process of their own: what it may do, and what is kept."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mrs.devices.probe import probe_devices
from mrs.errors import UsageError
from mrs.kernels.cuda import timing
from mrs.kernels.triton.plane_matrix import PlaneMatrix
from mrs.kernels.triton.self_test import triton_missing_reason
from mrs.load import load
from mrs.quantization import cuda_kernels, cuda_trial
from mrs.quantization.cuda_kernels import has_cuda_products, has_cuda_rows, verdict
from mrs.quantization.cuda_trial import CannotTry, Verdict
from support.emulated_gpu import GXX, EmulatedGpu

GPU = torch.device("cuda", 0)
STARTED = "print('started', flush=True)"
#: What the process of a trial may do, and what is said of it.
FAILURES = {
    "crash": ("import os; os.abort()", "failed: killed by signal 6 (Aborted)"),
    "crash with words": (
        "import os, sys; print('x\\nillegal access', file=sys.stderr, flush=True); os.abort()",
        "killed by signal 6 (Aborted): illegal access",
    ),
    "hang": ("import time; time.sleep(60)", "failed: no end after 2 s"),
    "exit": ("import sys; sys.exit('no module')", "failed: exit code 1: no module"),
    "silence": ("", "said nothing"),
    "nonsense": ("print('[]')", "said nothing"),
    "crash at the end": (
        """import os; print('{"reason": null}', flush=True); os.abort()""",
        "killed by signal 6",
    ),
    "wrong": ("""print('{"reason": "products are wrong"}')""", "products are wrong"),
}


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(cuda_kernels, "missing_reason", lambda device: None)
    monkeypatch.setattr(cuda_kernels, "driver_version", lambda: "1.2")
    monkeypatch.setattr(cuda_trial, "LIMIT_S", 2)
    forget()
    yield
    forget()


def forget() -> None:
    """As a new process."""
    for each in (has_cuda_products, has_cuda_rows, cuda_kernels._announce):
        each.cache_clear()
    cuda_kernels._hanging.clear()


def use(monkeypatch: pytest.MonkeyPatch, program: str, begin: str = STARTED) -> None:
    """Let this be the program of trials."""
    command = (sys.executable, "-S", "-c", f"{begin}\n{program}")
    monkeypatch.setattr(cuda_trial, "_COMMAND", command)


def say(found: Verdict) -> str:
    text = {"reason": found.reason, "cuda_s": found.cuda_s, "other_s": found.other_s}
    return f"print('''{json.dumps(text)}''')"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_costs_only_its_process(
    failure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, remembered, and tried again only on demand; other kinds are not affected."""
    program, said = FAILURES[failure]
    use(monkeypatch, program)
    assert not has_cuda_products(GPU, "Q4_K")
    assert not has_cuda_products(GPU, "Q4_K")
    (line,) = (text for text in caplog.messages if said in text)
    assert line.startswith("cuda:0: CUDA kernels do not multiply Q4_K: ")
    forget()
    use(monkeypatch, say(Verdict(None)))
    assert not has_cuda_products(GPU, "Q4_K")
    assert has_cuda_products(GPU, "Q6_K")
    assert has_cuda_rows(GPU)
    assert verdict(GPU, "Q4_K", retries_failure=True).reason is None
    forget()
    use(monkeypatch, "import os; os.abort()")
    assert has_cuda_products(GPU, "Q4_K")
    assert has_cuda_products(GPU, "Q6_K")
    assert has_cuda_rows(GPU)
    assert verdict(GPU, "Q4_K", retries_failure=True).reason is None


def test_a_load_waits_for_one_hanging_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, FAILURES["hang"][0])
    weights = [(GPU, name, (16, 256)) for name in ("Q4_K", "Q6_K")]
    cuda_kernels.try_cuda_kernels(weights)
    assert caplog.text.count("no end after") == 1  # of rows
    assert caplog.text.count("could not be tested: another of them hung") == 2
    forget()
    use(monkeypatch, say(Verdict(None)))
    assert not has_cuda_rows(GPU)
    assert has_cuda_products(GPU, "Q6_K")


@pytest.mark.parametrize("begin", ["import sys; sys.exit('no free memory')", "import no_module"])
def test_a_trial_that_does_not_begin_is_not_remembered(
    begin: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, "", begin)
    assert not has_cuda_rows(GPU)
    assert "could not be tested: exit code 1: " in caplog.messages[-1]
    forget()
    use(monkeypatch, say(Verdict(None)))
    assert has_cuda_rows(GPU)
    monkeypatch.setattr(cuda_trial, "_COMMAND", ("/no/such/program",))
    with pytest.raises(CannotTry, match="did not start: No such file"):
        verdict(GPU, "Q4_0")


@pytest.mark.parametrize(
    ("own", "others", "uses"),
    [
        ((3.0, 3.0), (4.0, 4.0), True),
        ((3.0, 5.0), (4.0, 4.0), True),
        ((5.0, 3.0), (4.0, 4.0), True),
        ((5.0, 5.0), (4.0, 4.0), False),
        (None, None, True),
    ],
)
def test_the_faster_kernels_are_used(
    own: tuple[float, float] | None,
    others: tuple[float, float] | None,
    uses: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Unless a path is chosen by hand."""
    caplog.set_level(logging.INFO)
    use(monkeypatch, say(Verdict(None, own, others)))
    assert has_cuda_products(GPU, "Q4_K") is uses
    assert ("others are faster" in caplog.text) is not uses
    for path, wanted in (("cuda", True), ("triton", False), ("torch", False)):
        forget()
        monkeypatch.setenv("MRS_GPU_PATH", path)
        assert has_cuda_products(GPU, "Q4_K") is wanted
        assert (triton_missing_reason(GPU) == "MRS_GPU_PATH is torch") is (path == "torch")


def test_a_path_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_kernels, "missing_reason", lambda device: "it is no NVIDIA GPU")
    assert not has_cuda_rows(GPU)
    assert not caplog.messages
    forget()
    monkeypatch.setenv("MRS_GPU_PATH", "cuda")
    assert not has_cuda_rows(GPU)
    assert caplog.messages == ["cuda:0: MRS_GPU_PATH is cuda, but it is no NVIDIA GPU"]
    monkeypatch.setenv("MRS_GPU_PATH", "vulkan")
    with pytest.raises(UsageError, match="MRS_GPU_PATH=vulkan: use cuda, triton, torch"):
        probe_devices()


def test_what_a_verdict_is_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another driver, card, torch or text of the kernels needs a new one, as does damage."""
    use(monkeypatch, say(Verdict("is kept")))
    assert verdict(GPU, "Q4_K").reason == "is kept"
    use(monkeypatch, say(Verdict(None)))
    for owner, name, value in (
        (cuda_kernels, "driver_version", lambda: "1.3"),
        (torch.cuda, "get_device_name", lambda device: "another card"),
        (torch.cuda, "get_device_capability", lambda device: (8, 0)),
        (torch, "__version__", "99.0"),
        (cuda_kernels, "_digest", lambda: "another text"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert verdict(GPU, "Q4_K").reason is None
        assert verdict(GPU, "Q4_K").reason == "is kept"
    path = tmp_path / "mrs" / cuda_kernels.FILE_NAME
    entries = json.loads(path.read_text())
    assert len(entries) == 6
    for number in range(20):
        monkeypatch.setattr(cuda_kernels, "driver_version", lambda number=number: str(number))
        verdict(GPU, "Q4_K")
    kept = json.loads(path.read_text())
    assert len(kept) == cuda_kernels._MOST_ENTRIES
    assert any("driver 19" in key for key in kept)
    for damaged in ("[1]", '{"reason": null}', '{"Q4_K": {"reason": null, "cuda_s": [1]}}'):
        path.write_text(f"{json.dumps({key: 0 for key in kept})[:-1]}, {damaged}}}")
        assert verdict(GPU, "Q4_K").reason is None


def test_a_text_of_the_kernels_changes_the_hash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("cuda/source/a.cu", "cuda/b.py", "triton/c.py", "workspace/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(cuda_kernels.mrs.kernels, "__file__", str(tmp_path / "__init__.py"))
    digest = cuda_kernels._digest.__wrapped__
    seen = {digest()}
    for path in sorted(tmp_path.rglob("*.*")):
        path.write_text("2")
        seen.add(digest())
    assert len(seen) == 5


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_program_itself_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_trial, "LIMIT_S", 100)
    with pytest.raises(CannotTry, match="exit code 1: torch finds no GPU"):
        cuda_trial.tried(GPU, "Q4_K")


def test_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins only with enough memory, and ends itself if the process that waits is gone."""
    alarms: list[int] = []
    free_bytes = 500 << 20
    monkeypatch.setattr(cuda_trial.signal, "alarm", alarms.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes, 8 << 30))
    monkeypatch.setattr(cuda_trial, "try_here", lambda device, kind: Verdict(f"{device} {kind}"))
    with pytest.raises(
        SystemExit, match=r"1\.00 GiB of the GPU's memory, of which 500 MiB are free"
    ):
        cuda_trial.main("1", "Q4_K")
    assert capsys.readouterr().out == ""
    free_bytes = 2 << 30
    cuda_trial.main("1", "Q4_K")
    started, found = capsys.readouterr().out.splitlines()
    assert started == "started"
    assert json.loads(found)["reason"] == "cuda:1 Q4_K"
    assert min(alarms) > cuda_trial.LIMIT_S


def test_kernels_are_tried_before_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a model can use, once for each device and format."""
    tried: list[str] = []

    def trial(device: torch.device, kind: str) -> Verdict:
        tried.append(f"{device} {kind}")
        return Verdict(None)

    monkeypatch.setattr(cuda_kernels, "tried", trial)
    second, cpu = torch.device("cuda", 1), torch.device("cpu")
    cuda_kernels.try_cuda_kernels(
        [
            *[(GPU, "Q4_K", (32, 256)), (GPU, "Q4_K", (64, 256)), (second, "BF16", (32, 256))],
            *[(GPU, "Q6_K", (33, 256)), (GPU, "Q2_K", (32, 256)), (GPU, "BF16", (256,))],
            *[(cpu, "Q8_0", (32, 256))],
        ]
    )
    # The second is of the same kind: what is known of the first is known of it.
    assert tried == ["cuda:0 rows", "cuda:0 Q4_K", "cuda:1 BF16"]
    monkeypatch.setattr(load, "try_cuda_kernels", lambda weights: sys.exit("tried"))
    monkeypatch.setattr(load, "cpu_arena", lambda *_: sys.exit("loaded"))
    with pytest.raises(SystemExit, match="tried"):
        load.load_to_run(None, [], {}, {}, lambda *_: None)


@pytest.mark.skipif(GXX is None, reason="needs g++")
@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_a_trial_times_products(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the emulated GPU in the place of one, with a clock that counts weights and tokens."""
    gpu, cpu = EmulatedGpu(tmp_path), torch.device("cpu")
    held: list[object] = []

    def each_of(matrices, product):  # type: ignore[no-untyped-def]
        held.append((type(matrices[0]).__name__, len(matrices)))
        found = product(matrices[0])
        assert found.shape == (len(found), 32)
        return float(len(found))

    monkeypatch.setattr(timing, "each_of", each_of)
    monkeypatch.setattr(timing, "ROWS", 32)
    monkeypatch.setattr(timing, "COLUMNS", 256)
    monkeypatch.setattr(PlaneMatrix, "matmul", lambda self, x: x[:, :32] + 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _Properties)
    monkeypatch.setattr(cuda_trial, "device_launcher", lambda device: gpu)
    for name in ("unavailable_reason", "products_unavailable_reason", "row_reason"):
        monkeypatch.setattr(cuda_trial, name, lambda *_: None)
    assert cuda_trial.try_here(cpu, kind) == Verdict(None, (1.0, 16.0), (1.0, 16.0))
    names = ["Tensor", "Tensor"] if kind == "BF16" else ["FragmentMatrix", "PlaneMatrix"]
    assert held == [(name, len_of(kind)) for name in (*names, *names)]
    assert cuda_trial.try_here(cpu, cuda_trial.ROWS) == Verdict(None)
    monkeypatch.setattr(cuda_trial, "products_unavailable_reason", lambda *_: "no Triton")
    assert (cuda_trial.try_here(cpu, kind).other_s is None) is (kind != "BF16")
    monkeypatch.setattr(cuda_trial, "unavailable_reason", lambda *_: "wrong")
    assert cuda_trial.try_here(cpu, kind) == Verdict("wrong")


class _Properties:
    L2_cache_size = 100_000


def len_of(kind: str) -> int:
    """Matrices that together have twice the bytes of the cache, and two more."""
    nbytes = 32 * 256 * 2 if kind == "BF16" else 32 * 8 * 34
    return 200_000 // nbytes + 2
