"""Videos of the Qwen-VL families: which frames are used, their size, and their place in the prompt.

Frames are chosen as transformers' video processors do, with a bound on the pixels of all frames
together (`cap_pixels_per_frame`), without which a long video would have any number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor

from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision_spec import ChosenFrames, ImageShape, PixelScale, VideoShape

TOKEN = "<|video_pad|>"
_START, _END = "<|vision_start|>", "<|vision_end|>"
#: Share of `max_video_tokens` that all frames of a video may have.
_SHARE = 0.9


@dataclass(frozen=True)
class _QwenVideo:
    """`rate` frames a second, from `least_frames` to `most_frames`, are used.

    `squares` is the layout of one frame. At most `most_rows` rows (see the families) are a bound
    on its pixels, if there is one.
    """

    squares: DynamicLayout
    frames: int
    rate: float
    least_frames: int
    most_frames: int
    most_rows: int | None
    token_id: int

    @property
    def scale(self) -> PixelScale:
        return self.squares.scale

    @property
    def resampling(self) -> str:
        return self.squares.resampling

    def _shape(self, rows: int, columns: int) -> ImageShape:
        """The shape of an image whose frames have rows * columns squares."""
        squares = self.squares
        height, width = rows * squares.factor, columns * squares.factor
        return ImageShape(
            pixels=(self.frames, 3, height, width),
            patches=rows * columns * (squares.factor // squares.patch_size) ** 2,
            rows=rows * columns,
            text=self.squares.token * (rows * columns),
            grid=(rows, columns),
        )

    def _least_pixels(self) -> int:
        """No bound on all frames makes the bound on one smaller than this."""
        return int(self.squares.min_pixels * 1.05)


@dataclass(frozen=True)
class RunningVideo(_QwenVideo):
    """Qwen2-VL: images follow each other without text between them, at positions in time.

    A second has `second_positions` positions, or an image one if that is None. The bounds on pixels
    are those of one frame.
    """

    second_positions: int | None = None
    placeholder: str = TOKEN

    def choose(self, total: int, rate: float) -> ChosenFrames:
        frames = self.frames
        if total < frames:
            return ChosenFrames(tuple(range(total)), total, rate)
        most = min(self.most_frames, total) // frames * frames
        wanted = min(max(total / rate * self.rate, self.least_frames), most)
        count = max(floor(wanted / frames), 1) * frames
        return ChosenFrames(tuple(n * total // count for n in range(count)), total, rate)

    def shape(self, chosen: ChosenFrames, height: int, width: int) -> VideoShape:
        squares, count = self.squares, len(chosen.indices)
        if self.most_rows is not None:
            pixels = int(self.most_rows * squares.factor**2 * _SHARE) * self.frames // count
            most = max(min(squares.max_pixels, pixels), self._least_pixels())
            squares = replace(squares, max_pixels=most)
        one = self._shape(*squares.grid(height, width))
        images = -(-count // self.frames)
        positions = 1.0
        if self.second_positions is not None:
            positions = self.second_positions * self.frames / chosen.chosen_rate
        times = [int(n * positions) for n in range(images)]
        shapes = [replace(one, time=time, span=0) for time in times]
        shapes[-1] = replace(shapes[-1], span=max(*one.grid, times[-1] + 1))
        return VideoShape(tuple(shapes), one.text * images)


@dataclass(frozen=True)
class StampedVideo(_QwenVideo):
    """Qwen3-VL: the time of each image is text before it. The bounds are those of all frames."""

    placeholder: str = f"{_START}{TOKEN}{_END}"

    def choose(self, total: int, rate: float) -> ChosenFrames:
        wanted = int(total / rate * self.rate)
        count = min(max(wanted, self.least_frames), self.most_frames, total)
        step = (total - 1) / max(count - 1, 1)
        return ChosenFrames(tuple(round(n * step) for n in range(count)), total, rate)

    def shape(self, chosen: ChosenFrames, height: int, width: int) -> VideoShape:
        squares, frames = self.squares, self.frames
        count = max(len(chosen.indices), frames)
        if self.most_rows is not None:
            one = min(self.most_rows * squares.factor**2, squares.max_pixels // count)
            squares = replace(squares, max_pixels=max(one, self._least_pixels()) * count)
        counted = round(count / frames) * frames
        shape = self._shape(*squares.grid(height, width, count, counted))
        times = [index / chosen.rate for index in chosen.indices]
        times += [times[-1]] * (-len(times) % frames)
        text = "".join(
            f"<{(first + last) / 2:.1f} seconds>{_START}{shape.text}{_END}"
            for first, last in zip(times[::frames], times[frames - 1 :: frames], strict=True)
        )
        return VideoShape((shape,) * (len(times) // frames), text)
