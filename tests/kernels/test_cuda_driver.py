"""How kernels are launched, by a library in the place of NVIDIA's driver; and why they are not."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mrs.kernels.cuda import driver, self_test
from mrs.kernels.cuda.launcher import DeviceLauncher, Launcher, Limits, architecture_of
from mrs.kernels.cuda.products import ProductsTask
from mrs.quantization.gguf.fields import PLANE_LAYOUTS
from support.emulated_gpu import GXX, EmulatedGpu

GPU = torch.device("cuda", 0)
GCC = shutil.which("gcc")
#: The structures of cuda.h, in its words.
DRIVER = """
#include <stdio.h>
#include <string.h>
typedef struct {
  int id;
  char pad[8 - sizeof(int)];
  union { char pad[64]; int programmatic; } value;
} Attribute;
typedef struct {
  unsigned x, y, z, bx, by, bz, shared;
  void *stream;
  Attribute *attrs;
  unsigned count;
} Config;
char said[400];
int fails;
int cuModuleLoadData(void **module, const char *image) {
  *module = (void *)image[0];
  return strcmp(image, "cubin") ? 200 : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = (void *)7;
  return strcmp(name, "products") ? 500 : module == (void *)'c' ? 0 : 400;
}
int cuFuncSetAttribute(void *function, int what, int value) {
  return function == (void *)7 && value == (what == 8 ? 50176 : what == 9 ? 100 : 0) ? 0 : 1;
}
int cuLaunchKernelEx(const Config *c, void *function, void **parameters, void **extra) {
  snprintf(said, sizeof said, "%u %u %u, %u %u %u, %u, %d, %u: %d %d, %d, %s", c->x, c->y, c->z,
           c->bx, c->by, c->bz, c->shared, (int)(long)c->stream, c->count, c->attrs->id,
           c->attrs->value.programmatic, function == (void *)7, extra ? "" : (char *)parameters[0]);
  return fails;
}
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetAttribute(int *value, int what, int device) {
  *value = what == 97 ? 99 << 10 : what == 81 ? 100 << 10 : 0;
  return device != 1;
}
int cuGetErrorString(int error, const char **text) {
  *text = error == 700 ? "an illegal memory access was encountered" : 0;
  return 0;
}
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The driver, and a stream of torch."""
    if GCC is None:
        pytest.skip("needs gcc")
    (tmp_path / "driver.c").write_text(DRIVER)
    command = [GCC, "-w", "-shared", "-fPIC", "-o", "libcuda.so", "driver.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = ctypes.CDLL(str(tmp_path / "libcuda.so"))
    monkeypatch.setattr(driver, "driver", lambda: found)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=1234)
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return found


class Letters(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char * 8),)


@pytest.mark.parametrize(("capability", "overlaps"), [((9, 0), 1), ((8, 9), 0)])
def test_a_launch(
    capability: tuple[int, int],
    overlaps: int,
    library: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Grid, threads, shared memory, torch's stream, and the task by its address."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    kernel = driver.load_kernel(b"cubin", "products", GPU, 50176)
    kernel.launch((5, 4, 3), 256, Letters(b"a task"))
    said = (ctypes.c_char * 400).in_dll(library, "said").value.decode()
    assert said == f"5 4 3, 256 1 1, 50176, 1234, {overlaps}: 6 1, 1, a task"


def test_what_the_driver_refuses_is_said(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(driver.DriverError, match=r"cuModuleLoadData .* error 200"):
        driver.load_kernel(b"no kernel", "products", GPU, 50176)
    with pytest.raises(driver.DriverError, match=r"cuModuleGetFunction .* error 500"):
        driver.load_kernel(b"cubin", "another", GPU, 50176)
    with pytest.raises(driver.DriverError, match="cuFuncSetAttribute"):
        driver.load_kernel(b"cubin", "products", GPU, 1 << 30)
    kernel = driver.load_kernel(b"cubin", "products", GPU, 50176)
    ctypes.c_int.in_dll(library, "fails").value = 700
    with pytest.raises(driver.DriverError, match="illegal memory access"):
        kernel.launch((1, 1, 1), 256, ProductsTask())
    monkeypatch.setattr(driver, "driver", lambda: None)
    with pytest.raises(driver.DriverError, match="libcuda"):
        driver.load_kernel(b"cubin", "products", GPU, 50176)


def test_architectures() -> None:
    assert [architecture_of(*each) for each in ((8, 0), (8, 9), (9, 0), (12, 0))] == [
        "sm_80",
        "sm_89",
        "sm_90a",
        "sm_120a",
    ]


def test_a_device_has_its_own_limits(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, **options: zeros(*size))
    limits = DeviceLauncher(torch.device("cuda", 1)).limits
    assert limits == Limits("sm_89", 99 << 10, 100 << 10)


@pytest.fixture
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has all that the kernels need, unless a test says otherwise."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(self_test, "nvrtc", object)
    monkeypatch.setattr(self_test, "driver", object)
    monkeypatch.setattr(self_test, "device_launcher", lambda device: None)


@pytest.mark.usefixtures("_a_gpu")
def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, a compiler or a driver that is not there; and a kernel that fails or is wrong."""
    layouts = {"Q4_K": PLANE_LAYOUTS["Q4_K"]}

    def reason() -> str | None:
        return self_test.unavailable_reason(GPU, layouts)

    def fail(*_: object) -> float:
        raise driver.DriverError("cuLaunchKernelEx of the NVIDIA driver failed: no\nmore")

    for error, said in ((1e-7, None), (1e-3, "an error of 1.0e-03"), (float("nan"), "nan")):
        monkeypatch.setattr(self_test, "largest_error", lambda *_, error=error: error)
        assert said in (reason() or "") if said else reason() is None
    monkeypatch.setattr(self_test, "largest_error", fail)
    assert "DriverError: cuLaunchKernelEx" in (reason() or "")
    monkeypatch.setattr(self_test, "driver", lambda: None)
    assert "driver" in (reason() or "")
    monkeypatch.setattr(self_test, "nvrtc", lambda: None)
    assert "NVRTC" in (reason() or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "older" in (reason() or "")
    assert "no NVIDIA GPU" in (self_test.missing_reason(torch.device("cpu")) or "")


@pytest.mark.full
@pytest.mark.skipif(GXX is None, reason="needs g++")
@pytest.mark.parametrize("name", ["Q6_K", "Q8_0", "BF16"])
def test_the_self_test_passes_where_the_kernels_are_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And neither where tokens have other bits in company nor where products are wrong."""
    cpu, layout = torch.device("cpu"), PLANE_LAYOUTS.get(name)
    monkeypatch.setattr(self_test, "ROWS", 32)
    monkeypatch.setattr(self_test, "COLUMNS", 512)
    gpu: Launcher = EmulatedGpu(tmp_path)
    assert self_test.largest_error(name, layout, cpu, gpu) < self_test.LARGEST_ERROR
    multiply = self_test.multiply

    def other_bits(x, *arguments, **options):  # type: ignore[no-untyped-def]
        found = multiply(x, *arguments, **options)
        return found if len(x) > 1 else found * (1 + 2**-22)

    monkeypatch.setattr(self_test, "multiply", other_bits)
    assert self_test.largest_error(name, layout, cpu, gpu) == float("inf")
    monkeypatch.setattr(
        self_test, "multiply", lambda x, *rest, **options: multiply(x * 1.01, *rest, **options)
    )
    assert self_test.largest_error(name, layout, cpu, gpu) > 1e-3
