"""What a terminal does to an editor's lines when it is made narrower: it wraps them anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit import Application
    from prompt_toolkit.layout.screen import Screen


def follow_resizes(app: Application[Any]) -> None:
    """Lets an editor erase all of its lines before it draws them for another width.

    prompt_toolkit goes up as many rows as it drew, but lines that are longer than the new width
    have more of them, of which the first would stay above the editor.
    """
    from prompt_toolkit.data_structures import Point

    renderer, draw_again = app.renderer, type(app)._on_resize

    def on_resize() -> None:
        drawn, cursor = renderer.last_rendered_screen, renderer._cursor_pos
        if drawn is not None:
            columns = max(1, renderer.output.get_size().columns)
            rows = _rows_above(drawn, cursor.y, columns) + cursor.x // columns
            renderer._cursor_pos = Point(x=max(cursor.x, columns), y=rows)
        draw_again(app)

    app._on_resize = on_resize  # type: ignore[method-assign]


def _rows_above(drawn: Screen, line: int, columns: int) -> int:
    """The rows that the lines above `line` have in a terminal of so many columns."""
    return sum(
        max(1, -(-_cells(drawn, above) // columns)) for above in range(min(line, drawn.height))
    )


def _cells(drawn: Screen, line: int) -> int:
    """The cells of a line up to the last character that is no space."""
    cells = (
        x + max(1, char.width) for x, char in drawn.data_buffer[line].items() if char.char.strip()
    )
    return max(cells, default=0)
