"""Which path runs, and that kernels and plans mean the same one."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import mrs.devices.cpu_path
from mrs.devices.cpu_path import (
    PATH_NAMES,
    PATH_VARIABLE,
    TORCH_VARIABLE,
    cpu_path,
    cpu_paths,
    torch_units,
)
from mrs.errors import UsageError
from mrs.formats import FORMATS, kv_format_of
from mrs.kernels.cpu.library import is_available, native_library, native_paths
from mrs.plan.memory.device_sizes import Workload

AVX2 = "avx2 fma f16c bmi2"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"
VNNI = f"{AVX512} avx512_vnni"
SAPPHIRE_RAPIDS = f"GenuineIntel {VNNI} avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16"
PROCESSORS = {
    "Sapphire Rapids": (SAPPHIRE_RAPIDS, "amx"),
    "AMX without integers": (f"{VNNI} avx512_bf16 amx_tile amx_bf16", "avx512_bf16"),
    "Zen 4": (f"AuthenticAMD {VNNI} avx512_bf16", "avx512_bf16"),
    "Sapphire Rapids without AMX": (f"GenuineIntel {VNNI} avx512_bf16", "avx512"),
    "Ice Lake": (VNNI, "avx512"),
    "Skylake server": (AVX512, "avx2"),
    "Alder Lake": (f"GenuineIntel {AVX2} avx_vnni", "avx_vnni"),
    "Zen 5": (f"AuthenticAMD {VNNI} avx512_bf16 avx_vnni", "avx512_bf16"),
    "Haswell": (AVX2, "avx2"),
    "Nehalem": ("sse4_2", "portable"),
    "Graviton 2": ("fp asimd asimddp", "neon"),
}
UNITS = {
    "Sapphire Rapids": {"bf16", "f16", "amx", "sums"},
    "Zen 4": {"bf16", "sums"},
    "Sapphire Rapids without AMX": {"bf16", "sums"},
    "Ice Lake": {"sums"},
    "Skylake server": {"sums"},
    "Haswell": set(),
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.delenv(TORCH_VARIABLE, raising=False)


@pytest.fixture
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    flags = frozenset(PROCESSORS[request.param][0].split())
    monkeypatch.setattr(mrs.devices.cpu_path, "_flags", lambda: flags)
    monkeypatch.setattr(mrs.devices.cpu_path, "_may_use_tiles", lambda: True)
    return request.param


@pytest.mark.parametrize("processor", PROCESSORS, indirect=True)
def test_the_best_path_of_processors(processor: str) -> None:
    assert cpu_path() == PROCESSORS[processor][1]
    assert cpu_paths()[-2:] == ["portable", "torch"]


@pytest.mark.parametrize("processor", ["Sapphire Rapids"], indirect=True)
@pytest.mark.parametrize("forced", ["avx512", "avx512_bf16"])
def test_lower_paths_of_a_processor_with_amx(
    processor: str, forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATH_VARIABLE, forced)
    assert cpu_path() == forced


@pytest.mark.parametrize("processor", ["Sapphire Rapids"], indirect=True)
def test_linux_may_refuse_tiles(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrs.devices.cpu_path, "_may_use_tiles", lambda: False)
    assert cpu_paths() == ["avx512", "avx512_bf16", "avx2", "portable", "torch"]
    monkeypatch.setenv(PATH_VARIABLE, "amx")
    with pytest.raises(UsageError, match="cannot run MRS_CPU_PATH=amx: it has avx512,"):
        cpu_path()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gives this permission")
def test_tiles_are_asked_for_where_there_are_some() -> None:
    """Linux grants them on every processor that it says has them, and on no other."""
    has_tiles = {"amx_tile", "amx_int8"} <= mrs.devices.cpu_path._flags()
    if platform.machine() == "x86_64":
        assert mrs.devices.cpu_path._may_use_tiles() is has_tiles


@pytest.mark.parametrize("processor", UNITS, indirect=True)
def test_the_units_that_torch_has(processor: str) -> None:
    assert torch_units() == UNITS[processor]


@pytest.mark.parametrize("processor", ["Sapphire Rapids"], indirect=True)
@pytest.mark.parametrize(
    ("most", "units"),
    [
        ("AVX512_CORE_FP16", {"bf16", "f16", "sums"}),
        ("avx512_core_bf16", {"bf16", "sums"}),
        ("AVX512_CORE", {"sums"}),
        ("AVX2", set()),
    ],
)
def test_torch_is_kept_to_fewer(
    processor: str, most: str, units: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TORCH_VARIABLE, most)
    assert torch_units() == units


@pytest.mark.skipif(sys.platform == "darwin", reason="there is no such file")
def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name : x\nflags\t\t: fpu avx2\n\nflags : other\n")
    assert {"fpu", "avx2"} <= mrs.devices.cpu_path._flags.__wrapped__(tmp_path / "cpuinfo") - {
        "other"
    }
    assert mrs.devices.cpu_path._flags.__wrapped__(tmp_path / "absent") == set()


@pytest.mark.parametrize("processor", ["Haswell"], indirect=True)
def test_a_path_that_cannot_run_is_named(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, "avx512")
    with pytest.raises(UsageError, match=r"MRS_CPU_PATH=avx512: it has avx2, portable, torch"):
        cpu_path()


@pytest.mark.parametrize("path", cpu_paths())
def test_kernels_and_plan_take_the_same(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, path)
    native_library.cache_clear()
    library = native_library()
    native_library.cache_clear()
    assert is_available() == (path in native_paths())
    run = Workload(8, 1).forward_shapes(
        FORMATS["BF16"], kv_format_of("BF16"), on_cpu=True, native=is_available()
    )[0]
    assert run.path == ("torch" if library is None else library.path)
    assert library is None or library.path_address
    assert path in PATH_NAMES
