"""By which position each rotary pair of multimodal rope rotates."""

from __future__ import annotations

from mrs.layers.rope.spec import Rope


def test_sections_follow_each_other() -> None:
    assert Rope(12, 1e4, sections=(3, 2, 1)).axes == [0, 0, 0, 1, 1, 2]


def test_interleaved_sections_alternate_until_one_is_used_up() -> None:
    """Qwen 3 VL: rows at 1, 4, 7, …, columns at 2, 5, 8, …, time everywhere else."""
    axes = Rope(48, 1e4, sections=(11, 7, 6), interleaved_sections=True).axes
    assert axes == [0, 1, 2] * 6 + [0, 1, 0] + [0] * 3
    assert [axes.count(axis) for axis in range(3)] == [11, 7, 6]


def test_ordinary_rope_has_no_axes() -> None:
    assert Rope(12, 1e4).axes == []
