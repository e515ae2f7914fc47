"""The heap keeps what a prompt frees, within a limit."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import psutil
import torch
from mrs.kernels.cpu.heap import keep_freed_memory

def resident_mib() -> int:
    return psutil.Process().memory_info().rss >> 20

torch.ones(1 << 20)
if sys.argv[1] == "kept":
    keep_freed_memory()
before = resident_mib()
blocks = [torch.ones(30 << 18) for _ in range(int(sys.argv[2]))]
blocks.clear()
print(resident_mib() - before)
"""


def kept_mib(kept: str, blocks: int) -> int:
    """What stays of some blocks of 30 MiB when they are freed."""
    command = [sys.executable, "-c", PROGRAM, kept, str(blocks)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_what_is_freed_is_kept() -> None:
    assert kept_mib("kept", 4) > 100
    assert kept_mib("as usual", 4) < 60


THREAD_PROGRAM = """
import sys
import threading
import torch
from mrs.kernels.cpu.heap import keep_freed_memory, use_one_heap

if sys.argv[1] == "one heap":
    use_one_heap()
keep_freed_memory()

def work() -> None:
    address = torch.ones(20 << 18).data_ptr()
    (line,) = (line for line in open("/proc/self/maps") if line.endswith("[heap]\\n"))
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    print(start <= address < end)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
@pytest.mark.parametrize(
    ("heap", "is_main"),
    [("one heap", "True"), pytest.param("as usual", "False", marks=pytest.mark.full)],
)
def test_other_threads_use_the_heap_that_keeps_it(heap: str, is_main: str) -> None:
    command = [sys.executable, "-c", THREAD_PROGRAM, heap]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == is_main


LIMIT_PROGRAM = """
import sys
import psutil
import torch
from mrs.kernels.cpu.heap import HeapLimit, keep_freed_memory

def resident_mib() -> int:
    return psutil.Process().memory_info().rss >> 20

torch.ones(1 << 20)
keep_freed_memory()
before = resident_mib()
heap = HeapLimit((before + int(sys.argv[1])) << 20)
blocks = [torch.ones(1 << 18) for _ in range(200)]
del blocks[::2]
heap.check()
print(resident_mib() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a function of glibc")
@pytest.mark.parametrize(
    ("limit_mib", "low", "high"),
    [
        ("150", 95, 115),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (("50", 95, 115), ("1000", 195, 215))
        ),
    ],
)
def test_gaps_are_returned_beyond_the_limit(limit_mib: str, low: int, high: int) -> None:
    """Every second of 200 blocks of 1 MiB is freed, between blocks that stay."""
    command = [sys.executable, "-c", LIMIT_PROGRAM, limit_mib]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert low <= int(ran.stdout) <= high
