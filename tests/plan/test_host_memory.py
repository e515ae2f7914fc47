"""Free memory of made-up machines: what /proc and the control groups say."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from mrs.devices.host_memory import host_memory

GIB = 1024**3


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of 64 GiB with 48 free."""
    write(tmp_path, "proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\n")
    with (tmp_path / "proc/meminfo").open("a") as meminfo:
        meminfo.write(f"MemAvailable: {48 * GIB // 1024} kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group_v2(root: Path, name: str, limit: str, current: int, file_pages: int) -> None:
    write(root, f"cgroup/{name}/memory.max", f"{limit}\n")
    write(root, f"cgroup/{name}/memory.current", f"{current}\n")
    stat = f"anon 5\nfile 999\ninactive_file {file_pages}\nactive_file 7\nslab_reclaimable 3\n"
    write(root, f"cgroup/{name}/memory.stat", stat)


def found(root: Path) -> tuple[int, int]:
    return tuple(host_memory(root / "proc", root / "cgroup"))


def test_machine_without_limits(machine):
    assert found(machine) == (64 * GIB, 48 * GIB)


def test_limit_of_version_two_gives_file_pages_back(machine):
    write(machine, "proc/self/cgroup", "0::/app\n")
    group_v2(machine, "app", str(8 * GIB), 6 * GIB, 5 * GIB)
    assert found(machine) == (8 * GIB, 7 * GIB + 10)


def test_limits_of_all_groups_above_apply(machine):
    write(machine, "proc/self/cgroup", "0::/slice/app\n")
    group_v2(machine, "slice/app", "max", 1 * GIB, 0)
    group_v2(machine, "slice", str(4 * GIB), 3 * GIB, 0)
    assert found(machine) == (4 * GIB, 1 * GIB + 10)


def test_high_mark_is_a_limit_too(machine):
    write(machine, "proc/self/cgroup", "0::/app\n")
    group_v2(machine, "app", "max", 1 * GIB, 0)
    write(machine, "cgroup/app/memory.high", str(2 * GIB))
    assert found(machine) == (2 * GIB, 1 * GIB + 10)


def test_container_that_sees_its_own_group_as_the_root(machine):
    """The path names a group on the host that the container's mount does not show."""
    write(machine, "proc/self/cgroup", "0::/system.slice/docker-0123.scope\n")
    group_v2(machine, ".", str(8 * GIB), 2 * GIB, 0)
    assert found(machine) == (8 * GIB, 6 * GIB + 10)


def test_limit_of_version_one(machine):
    write(machine, "proc/self/cgroup", "12:cpu,cpuacct:/other\n7:memory:/docker/abc\n0::/\n")
    folder = "cgroup/memory/docker/abc"
    write(machine, f"{folder}/memory.limit_in_bytes", str(16 * GIB))
    write(machine, f"{folder}/memory.usage_in_bytes", str(12 * GIB))
    stat = f"inactive_file 1\ntotal_inactive_file {3 * GIB}\ntotal_active_file {GIB}\n"
    write(machine, f"{folder}/memory.stat", stat)
    assert found(machine) == (16 * GIB, 8 * GIB)


def test_no_limit_of_version_one_is_a_huge_number(machine):
    write(machine, "proc/self/cgroup", "7:memory:/\n")
    write(machine, "cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    write(machine, "cgroup/memory/memory.usage_in_bytes", str(12 * GIB))
    assert found(machine) == (64 * GIB, 48 * GIB)


def test_group_above_its_limit_has_nothing_left(machine):
    write(machine, "proc/self/cgroup", "0::/app\n")
    group_v2(machine, "app", str(1 * GIB), 2 * GIB, 0)
    assert found(machine) == (1 * GIB, 0)


@pytest.mark.parametrize("text", ["", "garbage", "0::/../../etc\n", "0::"])
def test_strange_group_files_change_nothing(machine, text):
    write(machine, "proc/self/cgroup", text)
    assert found(machine) == (64 * GIB, 48 * GIB)


def test_this_machine_against_psutil(tmp_path):
    memory = psutil.virtual_memory()
    total, available = host_memory(cgroup=tmp_path)
    assert total == memory.total
    assert available == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert host_memory(tmp_path, tmp_path).total_bytes == memory.total
