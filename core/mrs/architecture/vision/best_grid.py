"""The grid of tiles for an image."""

from __future__ import annotations


def best_grid(height: int, width: int, edge: int, least: int, most: int) -> tuple[int, int]:
    """(rows, columns) of `least` to `most` square tiles with the aspect ratio nearest the image's.

    Of equally near grids the image has the largest that it fills by more than a half, where a tile
    has `edge` x `edge` pixels.
    """
    grids = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= rows * columns <= most
    ]
    best, least_difference = (1, 1), float("inf")
    for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / rows)
        is_filled = width * height > 0.5 * edge * edge * rows * columns
        if difference < least_difference or (difference == least_difference and is_filled):
            best, least_difference = (rows, columns), difference
    return best
