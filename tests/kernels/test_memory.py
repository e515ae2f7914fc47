"""The heap keeps what a prompt frees, where the C library can be told so."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from mrs.kernels.memory import keep_freed_memory

keep_freed_memory()

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def layer() -> None:
    held = [torch.ones(count << 20) for count in (5, 3, 7)]  # 60 MiB
    del held

layer()
before = faults()
for _ in range(10):
    layer()
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_pages_are_cleared_once() -> None:
    """Given back each time, 600 MiB would be 150,000 pages."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 15_000
