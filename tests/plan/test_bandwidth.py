"""Where a device's bandwidth comes from, and that remembering it survives anything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mrs.devices import bandwidth
from mrs.devices.bandwidth import (
    learn_host_bandwidth,
    measure_host_bandwidth,
    remember_bandwidth,
    with_bandwidth,
)
from mrs.devices.device import Device
from mrs.devices.measurements import host_key
from mrs.devices.parse import what_if_devices
from mrs.devices.published_cards import published_card

GPU = Device("cuda", 0, "NVIDIA GeForce RTX 4090", 1, 1, "cuda:0")
CPU = Device("cpu", 0, "Fast 9000", 1, 1, "cpu")


def test_order_of_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(bandwidth, "measure_host_bandwidth", lambda: 31e9)
    monkeypatch.setattr(bandwidth, "expected_bandwidth", lambda: 20e9)
    cache = tmp_path / "folder" / "bandwidth.json"
    given = replace(GPU, bandwidth_bytes_per_s=5.0, bandwidth_source="given")
    unknown = replace(GPU, name="Card of tomorrow", total_bytes=24 * 2**30)

    def sources():
        found = with_bandwidth([given, GPU, unknown, CPU], cache)
        return [(d.bandwidth_bytes_per_s, d.bandwidth_source) for d in found]

    before = [(5.0, "given"), (1008e9, "published"), (672e9, "assumed")]
    assert sources() == [*before, (20e9, "assumed")]
    assert not cache.exists()
    learn_host_bandwidth(cache)
    assert sources() == [*before, (31e9, "measured")]
    remember_bandwidth(GPU, 900e9, cache)
    assert sources()[1] == (900e9, "measured")
    assert [path.name for path in cache.parent.iterdir()] == ["bandwidth.json"]


def test_the_cpu_of_another_machine_is_not_as_fast_as_this_one(tmp_path):
    cache = tmp_path / "bandwidth.json"
    remember_bandwidth(CPU, 300e9, cache)
    (other,) = with_bandwidth(what_if_devices(["cpu=64GiB"]), cache)
    assert (other.bandwidth_bytes_per_s, other.bandwidth_source) == (60e9, "assumed")


def test_the_fastest_measurement_is_kept(tmp_path, monkeypatch):
    cache = tmp_path / "bandwidth.json"
    for measured, kept in ((14e9, 14e9), (31e9, 31e9), (9e9, 31e9)):
        monkeypatch.setattr(bandwidth, "measure_host_bandwidth", lambda fast=measured: fast)
        learn_host_bandwidth(cache)
        assert with_bandwidth([CPU], cache)[0].bandwidth_bytes_per_s == kept


def test_impossible_measurements_are_neither_saved_nor_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(bandwidth, "expected_bandwidth", lambda: 20e9)
    cache = tmp_path / "bandwidth.json"
    remember_bandwidth(CPU, 1.4e15, cache)
    assert not cache.exists()
    cache.write_text(json.dumps({host_key(): 1.4e15}))
    assert with_bandwidth([CPU], cache)[0].bandwidth_source == "assumed"
    remember_bandwidth(CPU, 31e9, cache)
    assert with_bandwidth([CPU], cache)[0].bandwidth_bytes_per_s == 31e9


def test_logical_devices_read_the_memory_of_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(bandwidth, "expected_bandwidth", lambda: 20e9)
    cache = tmp_path / "bandwidth.json"
    logical = Device("cuda", 1, "logical device on the CPU", 1, 1, "cpu")
    assert with_bandwidth([logical], cache)[0].bandwidth_bytes_per_s == 20e9
    remember_bandwidth(CPU, 33e9, cache)
    assert with_bandwidth([logical], cache)[0].bandwidth_bytes_per_s == 33e9


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"cuda NVIDIA GeForce RTX 4090": -1}', "\x00"])
def test_damaged_file_holds_nothing(tmp_path, text):
    cache = tmp_path / "bandwidth.json"
    cache.write_text(text)
    assert with_bandwidth([GPU], cache)[0].bandwidth_source == "published"


def test_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    remember_bandwidth(CPU, 1.0, tmp_path / "file" / "bandwidth.json")
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A10G", 600),
        ("NVIDIA L40S", 864),
        ("NVIDIA L4", 300),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 672),
        ("Apple M2 Max", 400),
    ],
)
def test_published(name, gb_per_s):
    assert published_card(name).bytes_per_s == gb_per_s * 1e9


@pytest.mark.parametrize(
    "name",
    ["NVIDIA RTX A3000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA RTX 4090 Laptop GPU", ""],
)
def test_names_that_only_resemble_a_published_one(name):
    assert published_card(name) is None


def test_measuring_gives_a_plausible_number():
    assert 1e9 < measure_host_bandwidth(8 * 1024**2) < 1e13
