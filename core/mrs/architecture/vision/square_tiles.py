"""Images in square tiles, and in one more tile as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.architecture.vision_spec import ImageShape


@dataclass(frozen=True)
class SquareTile:
    """A tile of `edge` x `edge` pixels, with `side` x `side` patches and `rows` rows."""

    edge: int
    side: int
    rows: int

    def views(self, rows: int, columns: int) -> int:
        """Views of an image in so many tiles; the whole image is one more than several."""
        return rows * columns + (rows * columns > 1)

    def shape(self, rows: int, columns: int, text: str) -> ImageShape:
        """The shape of an image in so many tiles, whose `grid` is (rows, columns) of them."""
        views = self.views(rows, columns)
        return ImageShape(
            pixels=(views, 3, self.edge, self.edge),
            patches=views * self.side**2,
            rows=views * self.rows,
            text=text,
            grid=(rows, columns),
            views=((self.side, self.side),) * views,
        )
