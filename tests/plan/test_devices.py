"""Which devices are found: hypothetical, logical, NVIDIA's through a stand-in library, Apple's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrs.devices.apple import working_set_bytes
from mrs.devices.bandwidth import with_bandwidth
from mrs.devices.cpu_path import PATH_NAMES
from mrs.devices.device import Device, placement_devices
from mrs.devices.host_memory import HostMemory
from mrs.devices.nvidia import cuda_devices, driver_version
from mrs.devices.parse import what_if_devices
from mrs.devices.probe import probe_devices
from mrs.devices.published_cards import PUBLISHED, find_card, published_card, usual_card
from mrs.devices.published_processors import PLATFORMS, published_processor
from mrs.errors import UsageError
from mrs.plan.speed.rates import device_speed

GIB = 1024**3
HOST = HostMemory(64 * GIB, 48 * GIB)


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    """A machine with 48 GiB free and no accelerator."""
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {48 * GIB // 1024} kB\n"
    )
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Fast 9000\n")
    return {"proc": tmp_path, "cgroup": tmp_path / "cgroup"}


def test_machine_with_a_cpu_only(machine):
    (cpu,) = probe_devices(environ={}, **machine)
    assert cpu == Device("cpu", 0, "Fast 9000", 64 * GIB, 48 * GIB, "cpu")


def test_hypothetical_devices(machine):
    devices = probe_devices(
        ["cpu=64GiB", "cuda:0=24GiB", "cuda:1=16GiB,bandwidth=448GB/s"], environ={}, **machine
    )
    assert [d.label for d in devices] == ["cuda:0", "cuda:1", "cpu"]
    assert [d.available_bytes for d in devices] == [24 * GIB, 16 * GIB, 64 * GIB]
    assert devices[1].bandwidth_bytes_per_s == 448e9
    assert devices[1].bandwidth_source == "given"
    assert devices[0].bandwidth_bytes_per_s is None


def test_hypothetical_accelerators_stand_beside_the_real_cpu(machine):
    devices = probe_devices(["cuda=24GiB"], environ={}, **machine)
    assert [(d.label, d.available_bytes) for d in devices] == [
        ("cuda:0", 24 * GIB),
        ("cpu", 64 * GIB),  # all of it: what is free now is not the other machine's
    ]


@pytest.mark.parametrize(
    ("text", "gib", "gb_per_s"),
    [
        ("cuda:0=RTX 4090", 24, 1008),
        ("cuda:0=rtx4090", 24, 1008),
        ("cuda:0=NVIDIA GeForce RTX 4090 24GB", 24, 1008),
        ("cuda:0=RTX 4090,bandwidth=900GB/s", 24, 900),
        ("cuda=A100", 40, 1555),
        ("cuda=NVIDIA A100-SXM4-80GB", 80, 2039),
        ("cuda=L4", 22.5, 300),
        ("cuda=L4 24GB", 22.5, 300),
        ("cuda=RTX 4060 Ti 16 GiB", 16, 288),
        ("metal=M2 Max 96GB", 72, 400),
        ("metal=Apple M1 16GB", 32 / 3, 68),
    ],
)
def test_published_cards(text, gib, gb_per_s, machine):
    device = probe_devices([text], environ={}, **machine)[0]
    assert device.available_bytes == device.total_bytes == int(gib * GIB)
    assert device.bandwidth_bytes_per_s == gb_per_s * 1e9
    assert device.bandwidth_source == ("given" if "bandwidth" in text else "published")
    assert device.shares_host_memory == (device.kind == "metal")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("cuda:0=RTX 4095", "RTX 4090"),
        ("cuda:0=H100X", "H100"),
        ("cuda:0=RTX 4060 Ti", "RTX 4060 Ti 8GB, RTX 4060 Ti 16GB"),
        ("cuda:0=RTX 4090 48GB", "RTX 4090"),
        ("cuda:0=M2 Max 96GB", "cuda:0=24GiB"),
        ("metal=M2 Max", "Apple M2 Max 96GB"),
        ("metal=RTX 4090", "cuda:0=24GiB"),
        ("cpu=RTX 4090", "cuda:0=24GiB"),
        ("cuda:0=Voodoo 5", "cuda:0=24GiB"),
        ("EPYC 9654", 'write such as "EPYC 9654 64GB"'),
        ("Ryzen 9 9955X 64GB", "Ryzen 9 9950X"),
        ("cuda:0=EPYC 9654 64GB", "EPYC 9654"),
        ("Strix Halo", "Ryzen AI Max 395 128GB"),
        ("cuda:0=24", "write 24GiB"),
        ("cuda:0=4095", "write 4095GiB"),
        ("cuda:0=24GiB,bandwidth=900", "write 900GB/s"),
    ],
)
def test_names_and_numbers_that_say_too_little(text, hint, machine):
    with pytest.raises(UsageError) as caught:
        probe_devices([text], environ={}, **machine)
    assert hint in str(caught.value.hint)


def test_every_card_is_found_by_its_name():
    for name, (gb_per_s, _, _, *sizes) in PUBLISHED.items():
        for size in sizes:
            card = find_card(f"{name} {size:.0f}GB" if len(sizes) > 1 else name)
            assert card.memory_bytes == int(size * GIB)
            assert card.bytes_per_s == gb_per_s * 1e9 == published_card(name).bytes_per_s


@pytest.mark.parametrize(
    ("texts", "quoted"),
    [
        (["rocm:0=24GiB"], "'rocm:0=24GiB'"),
        (["cuda:0"], "'cuda:0'"),
        (["cuda:x=1GiB"], "'cuda:x=1GiB'"),
        (["cpu:1=1GiB"], "'cpu:1=1GiB'"),
        (["cuda:0=lots"], "'lots'"),
        (["cuda:0=0"], "'0'"),
        (["cuda:0=0GiB"], "'0GiB'"),
        (["cuda:0=-1GiB"], "'-1GiB'"),
        ([f"cuda:0={9:9<400}GiB"], "is too large"),
        ([f"cuda:0=1GiB,bandwidth={9:9<400}GB/s"], "is too large"),
        (["cuda:0=1GiB,speed=9"], "'speed=9'"),
        (["cuda:0=1GiB,bandwidth=fast"], "'fast'"),
        (["cuda:0=1GiB,bandwidth=1GB/s,bandwidth=2GB/s"], "'bandwidth=2GB/s'"),
        (["cuda:0=1GiB", "cuda=2GiB"], "cuda:0 is given twice"),
        ([""], "''"),
    ],
)
def test_hypothetical_devices_that_make_no_sense(texts, quoted, machine):
    with pytest.raises(UsageError) as caught:
        probe_devices(texts, environ={}, **machine)
    assert quoted in str(caught.value)
    assert "--device" in str(caught.value)


def test_logical_devices_share_the_host_without_counting_a_byte_twice(machine):
    devices = probe_devices(environ={"MRS_LOGICAL_DEVICES": "cpu, cpu"}, **machine)
    assert [(d.kind, d.ordinal, d.torch_device) for d in devices] == [
        ("cuda", 0, "cpu"),
        ("cuda", 1, "cpu"),
        ("cpu", 0, "cpu"),
    ]
    assert [d.available_bytes for d in devices] == [16 * GIB] * 3


def test_logical_devices_with_sizes(machine):
    environ = {"MRS_LOGICAL_DEVICES": "cpu=2GiB,cpu,cpu=6GiB"}
    devices = probe_devices(environ=environ, **machine)
    assert [d.available_bytes for d in devices] == [2 * GIB, 20 * GIB, 6 * GIB, 20 * GIB]


def test_cpu_only_ignores_every_accelerator(machine):
    environ = {"MRS_LOGICAL_DEVICES": "cpu,cpu"}
    for what_if in ([], ["cuda=24GiB"]):
        (cpu,) = probe_devices(what_if, cpu_only=True, environ=environ, **machine)
        assert (cpu.kind, cpu.available_bytes) == ("cpu", 48 * GIB)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("cpu,gpu", "'gpu'"),
        ("cpu=big", "'big'"),
        ("cpu=24", "'24' has no unit"),
        ("cpu=99999GiB,cpu", "add up to 97.7 TiB, but this machine has "),
    ],
)
def test_logical_devices_that_make_no_sense(text, quoted, machine):
    with pytest.raises(UsageError, match=quoted):
        probe_devices(environ={"MRS_LOGICAL_DEVICES": text}, **machine)


def test_unified_memory_counts_once(machine):
    devices = probe_devices(["metal=24GiB"], environ={}, **machine)
    assert [d.label for d in devices] == ["metal:0", "cpu"]
    assert [d.kind for d in placement_devices(devices)] == ["metal"]
    devices = probe_devices(["cuda=24GiB"], environ={}, **machine)
    assert [d.kind for d in placement_devices(devices)] == ["cuda", "cpu"]


def test_metal_recommends_two_thirds_or_three_quarters():
    """Against what `recommendedMaxWorkingSetSize` is reported to be on such machines, in MiB."""
    for host_gib, reported_mib in [(16, 10922), (32, 21845), (36, 27648), (64, 49152)]:
        assert working_set_bytes(host_gib * GIB) // 1024**2 == reported_mib
    assert working_set_bytes(64 * GIB, wired_limit_mib=57344) == 56 * GIB


class FakeNvml:
    """NVIDIA's library for cards of (uuid, free GiB, slices), or one that fails to start."""

    class NVMLError(Exception):
        pass

    def __init__(self, cards, *, starts=True, has_memory=True):
        self.cards = cards
        self.starts = starts
        self.has_memory = has_memory
        self.running = 0

    def nvmlInit(self):
        if not self.starts:
            raise self.NVMLError
        self.running += 1

    def nvmlShutdown(self):
        self.running -= 1

    def nvmlSystemGetDriverVersion(self):
        if not self.has_memory:
            raise self.NVMLError
        return b"580.1"

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card):
        return card[0]

    def nvmlDeviceGetName(self, card):
        return f"Card {card[0]}".encode()

    def nvmlDeviceGetMemoryInfo(self, card):
        if not self.has_memory:
            raise self.NVMLError
        return SimpleNamespace(total=80 * GIB, free=card[1] * GIB)

    def nvmlDeviceGetMigMode(self, card):
        if card[2] is None:
            raise self.NVMLError
        return (1 if card[2] else 0), 0

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):
        if index >= len(card[2]):
            raise self.NVMLError
        return card[2][index]


CARDS = [("GPU-aa11", 70, None), ("GPU-bb22", 60, None), ("GPU-bb33", 50, [])]
SLICES = [("MIG-x1", 9, None), ("MIG-x2", 8, None)]


def visible(monkeypatch, tmp_path, cards, wanted=None, **how) -> list[Device]:
    nvml = FakeNvml(cards, **how)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    devices = cuda_devices(environ, HOST, tmp_path)  # no meminfo there: not Linux, so it asks
    assert nvml.running == 0
    return devices


@pytest.mark.parametrize(
    ("wanted", "free_gib"),
    [
        (None, [70, 60, 50]),
        ("", []),
        ("0", [70]),
        ("2,0", [50, 70]),
        ("1, 2", [60, 50]),
        ("GPU-bb22", [60]),
        ("GPU-aa", [70]),
        ("GPU-bb", []),
        ("-1", []),
        ("0,-1,1", [70]),
        ("0,9,1", [70]),
        ("1,1", [60]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices(monkeypatch, tmp_path, wanted, free_gib):
    devices = visible(monkeypatch, tmp_path, CARDS, wanted)
    assert [d.available_bytes for d in devices] == [gib * GIB for gib in free_gib]
    assert [d.torch_device for d in devices] == [f"cuda:{i}" for i in range(len(devices))]


@pytest.mark.parametrize(
    ("wanted", "free_gib"),
    [(None, [70]), ("1", [9]), ("MIG-x2", [8]), ("MIG-x2,MIG-x1", [8]), ("MIG-y", []), ("0", [70])],
)
def test_slices_of_a_card(monkeypatch, tmp_path, wanted, free_gib):
    cards = [CARDS[0], ("GPU-cc", 40, SLICES)]
    devices = visible(monkeypatch, tmp_path, cards, wanted)
    assert [d.available_bytes for d in devices] == [gib * GIB for gib in free_gib]


@pytest.mark.parametrize(
    ("how", "version"), [({}, "580.1"), ({"starts": False}, ""), ({"has_memory": False}, "")]
)
def test_the_version_of_the_driver(monkeypatch, how, version):
    nvml = FakeNvml([], **how)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert driver_version.__wrapped__() == version
    assert nvml.running == 0


def test_only_card_is_sliced(monkeypatch, tmp_path):
    (device,) = visible(monkeypatch, tmp_path, [("GPU-cc", 40, SLICES)])
    assert device.available_bytes == 9 * GIB


def test_no_driver_and_no_memory_of_its_own(monkeypatch, tmp_path):
    assert visible(monkeypatch, tmp_path, CARDS, starts=False) == []
    (device, *_) = visible(monkeypatch, tmp_path, CARDS, has_memory=False)
    assert device.shares_host_memory
    assert (device.total_bytes, device.available_bytes) == HOST
    cpu = Device("cpu", 0, "", 64 * GIB, 48 * GIB, "cpu")
    assert [d.kind for d in placement_devices([device, cpu])] == ["cuda"]


def test_without_a_driver_the_library_is_not_even_imported(monkeypatch, machine):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    if not Path("/dev/dxg").exists():
        assert cuda_devices({}, HOST, machine["proc"]) == []


def test_names_of_cards_alone_get_the_next_labels():
    devices = what_if_devices(["2x RTX 3090", "4090", "M4 Max 64GB", "cpu=64GiB"])
    assert [(each.label, each.name.partition(",")[0]) for each in devices] == [
        ("cuda:0", "RTX 3090"),
        ("cuda:1", "RTX 3090"),
        ("cuda:2", "RTX 4090"),
        ("metal:0", "Apple M4 Max 64GB"),
        ("cpu", "hypothetical"),
    ]
    with pytest.raises(UsageError) as caught:
        what_if_devices(["RTX 409"])
    assert "RTX 4090" in str(caught.value.hint)


@pytest.mark.parametrize(("gib", "low", "high"), [(8, 250, 500), (24, 600, 1100), (80, 1900, 3400)])
def test_a_card_without_a_name_has_the_speed_that_is_usual_for_its_memory(gib, low, high):
    assert low < usual_card(gib * GIB, "NVIDIA").bytes_per_s / 1e9 < high
    assert usual_card(48 * GIB, "Apple").bytes_per_s >= 273e9, "no Mac of 64 GB is slower"


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("text", "label", "gib", "gb_per_s"),
    [
        ("7900 XTX", "cuda:0", 24, 960),
        ("AMD Radeon RX 9070 XT", "cuda:0", 16, 640),
        ("W7900", "cuda:0", 48, 864),
        ("MI300X", "cuda:0", 192, 5300),
        ("Ryzen AI Max+ 395 128GB", "cuda:0", 96, 256),
        ("Framework Desktop 64GB", "cuda:0", 48, 256),
        ("A770 16GB", "cuda:0", 16, 560),
        ("Intel Arc B580", "cuda:0", 12, 456),
        ("Pro B60", "cuda:0", 24, 456),
        ("Max 1550", "cuda:0", 128, 3277),
        ("DGX Spark", "cuda:0", 119, 273),
        ("Mac mini M4 16GB", "metal:0", 32 / 3, 120),
        ("M5 Max 128GB", "metal:0", 96, 614),
        ("EPYC 9654 768GB", "cpu", 768, 460.8),
        ("Intel Core i9-13900K 64GB", "cpu", 64, 89.6),
        ("AMD Ryzen 9 7950X 16-Core Processor 64GB", "cpu", 64, 83.2),
        ("Intel(R) Xeon(R) Platinum 8480+ 512GB", "cpu", 512, 307.2),
        ("cpu=Threadripper PRO 7965WX 256GB", "cpu", 256, 332.8),
    ],
)
def test_devices_of_all_makers_by_name(text, label, gib, gb_per_s):
    (device,) = what_if_devices([text])
    assert (device.label, device.total_bytes) == (label, int(gib * GIB))
    assert device.bandwidth_bytes_per_s == pytest.approx(gb_per_s * 1e9)


def test_a_longer_number_is_another_processor():
    assert published_processor("AMD Ryzen 9 7950X3D 16-Core Processor").name == "Ryzen 9 7950X3D"
    assert published_processor("AMD EPYC 7302P 16-Core Processor").name == "EPYC 7302"
    assert published_processor("AMD EPYC 96540") is None
    assert {each.path for each in PLATFORMS} <= set(PATH_NAMES)


def test_the_memory_of_a_mac_is_that_of_the_computer_however_it_is_named():
    named, sized = (what_if_devices([text])[0] for text in ("M4 Max 64GB", "metal=64GiB"))
    assert named.total_bytes == sized.total_bytes == 48 * GIB


def test_the_speed_of_a_named_processor_is_not_that_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow, fast, unnamed = (
        device_speed(with_bandwidth(what_if_devices([text]))[0], "Q4_K", "kind", 0.6)
        for text in ("Ryzen 7 5800X 64GB", "EPYC 9965 768GB", "cpu=64GiB")
    )
    assert fast.read_bytes_per_s == pytest.approx(slow.read_bytes_per_s * 576 / 51.2)
    assert fast.operations_per_s > 20 * slow.operations_per_s
    assert slow.decode_error < unnamed.decode_error
