"""Takes a picture of a real session: runs a command in tmux and exports its screen as SVG.

    python tests/pictures/record.py man/chat.svg --type "Hello!" -- mrs -i plain -m demo

Each `--type` is typed and sent once the screen has been still for a while. `--theme light` draws
the colours of a light terminal. Needs tmux.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import time
from pathlib import Path
from textwrap import shorten

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

STILL_S = 2.0
LONGEST_WAIT_S = 120.0
#: Columns that the buttons of the drawn window take beside its title, on both sides.
TITLE_MARGIN = 24
#: Background, text, and the colours from black to white.
THEMES = {
    "dark": TerminalTheme(
        (30, 32, 38),
        (222, 224, 228),
        [
            (66, 70, 80),
            (224, 108, 117),
            (152, 195, 121),
            (229, 192, 123),
            (97, 175, 239),
            (198, 120, 221),
            (86, 182, 194),
            (200, 204, 212),
        ],
    ),
    "light": TerminalTheme(
        (250, 250, 248),
        (40, 44, 52),
        [
            (40, 44, 52),
            (190, 40, 50),
            (50, 120, 40),
            (150, 100, 0),
            (20, 90, 190),
            (140, 40, 150),
            (0, 115, 130),
            (200, 204, 212),
        ],
    ),
}


class Screen:
    """A tmux server of its own with one window."""

    def __init__(self, columns: int, rows: int) -> None:
        self._socket = f"mrs-picture-{time.monotonic_ns()}"
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "env PS1='$ ' bash --norc")

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def when_still(self) -> str:
        """The screen with its colours, once it has not changed for `STILL_S`."""
        seen, since, start = "", time.monotonic(), time.monotonic()
        while time.monotonic() - since < STILL_S:
            if (now := self._tmux("capture-pane", "-e", "-p")) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - start > LONGEST_WAIT_S:
                raise TimeoutError("the screen does not come to rest")
            time.sleep(0.1)
        return seen

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-u", "-L", self._socket, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def svg(screen: str, title: str, columns: int, theme: TerminalTheme) -> str:
    """The picture of what `tmux capture-pane -e` said."""
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor")
    # A style goes on in the next line until another one begins.
    console.print(Text.from_ansi(screen.rstrip()), soft_wrap=True)
    drawing = console.export_svg(title=title, theme=theme, unique_id="mrs")
    # The reader's own monospaced font will do: a picture fetches nothing.
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("Fira Code, monospace", "ui-monospace, monospace")
    # Some viewers drop a no-break space that begins a text, and with it shift the rest.
    return drawing.replace("&#160;", " ").replace("<text ", '<text xml:space="preserve" ')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--type", action="append", default=[], metavar="TEXT")
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--theme", choices=list(THEMES), default="dark")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    line = shlex.join(arguments.command)
    screen = Screen(arguments.columns, arguments.rows)
    try:
        screen.when_still()
        for text in ("clear", line, *arguments.type):
            screen.type(text)
            shown = screen.when_still()
    finally:
        screen.close()
    theme = THEMES[arguments.theme]
    title = shorten(line, arguments.columns - TITLE_MARGIN, placeholder=" \u2026")
    drawing = svg(shown, title, arguments.columns, theme)
    arguments.picture.write_text(drawing, "utf-8")


if __name__ == "__main__":
    main()
