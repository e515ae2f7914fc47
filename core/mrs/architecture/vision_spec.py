"""What a model sees or hears with, as small frozen values: tower, projector and layout.

The tower encodes patches of images, the projector maps its output to the language model's hidden
size, and the layout gives the size of the tensor and the number of rows for an image of any size.
A model that hears has the same parts: audio is an image of frames and bands, in one patch a row.
Torch is not needed: the planner uses these values too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol, runtime_checkable

from mrs.layers.layer import Layer

#: Samples of audio in a second: models that hear are trained with 16 kHz.
SAMPLES_PER_S = 16_000
#: How many times as long as wide an image may be. Longer ones would need far more memory for
#: resizing, and more patches, than a plan counts.
MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class ImageShape:
    """The sizes that follow from the size of one image, or the length of audio.

    pixels   shape of the tower's input tensor
    patches  patches in that tensor, including padding
    rows     rows of the language model's input that the image's features fill
    text     what the prompt has for the image: `rows` image tokens, and the tokens around them;
             `{n}` in it is the image's number, from 0
    grid     tiles or patches along the edges; its meaning depends on the layout
    views    (rows, columns) of patches of each part of the image that is encoded on its own; empty
             if all parts are alike
    keys     keys per head in each cross-attention layer; 0 for models without such layers
    time     rotary position of frames in time, counted from the start of their video
    span     rotary positions from the start of the image to what follows; None is the longer edge
             of the grid
    """

    pixels: tuple[int, ...]
    patches: int
    rows: int
    text: str
    grid: tuple[int, ...] = ()
    keys: int = 0
    views: tuple[tuple[int, int], ...] = ()
    time: int = 0
    span: int | None = None


@dataclass(frozen=True)
class PixelScale:
    """The tower's input from 8-bit pixels: (pixel * factor - mean) / std, for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float = 1 / 255


@dataclass(frozen=True)
class LogMel:
    """The spectrogram of Whisper (arXiv 2212.04356, section 2.2).

    A frame every `hop` samples has the power of `window` samples around it in `bands` bands of the
    mel scale. Its logarithm is kept within 8 of the largest, and scaled to about -1 to 1.
    """

    bands: int
    window: int = 400
    hop: int = 160


@dataclass(frozen=True)
class AudioLayout:
    """A spectrogram in chunks of `chunk` frames, which are halved `halvings` times.

    Silence fills up shorter audio to `least` samples. The prompt has a `token` for each row.
    """

    mel: LogMel
    chunk: int
    halvings: int
    least: int
    token: str

    @property
    def frames_per_s(self) -> int:
        return SAMPLES_PER_S // self.mel.hop

    def shape(self, samples: int) -> ImageShape:
        """The sizes for audio of this length; `pixels` are (bands, frames)."""
        frames = max(samples, self.least) // self.mel.hop
        whole, rest = divmod(frames, self.chunk)
        rows = whole * self.rows_of(self.chunk) + self.rows_of(rest)
        return ImageShape((self.mel.bands, frames), rows, rows, self.token * rows)

    def rows_of(self, frames: int) -> int:
        """Rows of a chunk that has `frames` frames."""
        for _ in range(self.halvings):
            frames = -(-frames // 2)
        return frames

    def largest(self, seconds: int) -> ImageShape:
        """The sizes for audio of this length in seconds."""
        return self.shape(seconds * SAMPLES_PER_S)


class ImageLayout(Protocol):
    """How images are resized and cut; `mrs.media.image_processors` has a function for each."""

    @property
    def scale(self) -> PixelScale: ...

    @property
    def is_resizable(self) -> bool:
        """Whether smaller images need less, so that `--max-edge` has an effect."""

    def shape(self, height: int, width: int) -> ImageShape:
        """The sizes for an image of `height` x `width` pixels."""

    def largest(self, edge: int) -> ImageShape:
        """The sizes for the image that needs most, of all with no edge longer than `edge`."""


@dataclass(frozen=True)
class ChosenFrames:
    """The frames of a video that a model gets: their indices among `total`, `rate` a second."""

    indices: tuple[int, ...]
    total: int
    rate: float

    @property
    def chosen_rate(self) -> float:
        """Chosen frames a second."""
        return len(self.indices) / self.total * self.rate


@dataclass(frozen=True)
class VideoShape:
    """A video as further images, which have the pixels of some consecutive frames each.

    `text` is what the prompt has for the whole video.
    """

    images: tuple[ImageShape, ...]
    text: str


class VideoLayout(Protocol):
    """Which frames of a video are used, and how they are resized.

    Each `frames` consecutive ones become one image; the last one is repeated if some are missing.
    `placeholder` stands for a video in a rendered prompt, and features replace the token
    `token_id`.
    """

    @property
    def frames(self) -> int: ...

    @property
    def placeholder(self) -> str: ...

    @property
    def token_id(self) -> int: ...

    @property
    def scale(self) -> PixelScale: ...

    @property
    def resampling(self) -> str: ...

    def choose(self, total: int, rate: float) -> ChosenFrames:
        """Some of the `total` frames of a video with `rate` frames a second."""

    def shape(self, chosen: ChosenFrames, height: int, width: int) -> VideoShape:
        """The sizes for frames of `height` x `width` pixels."""


@dataclass(frozen=True)
class Patches:
    """Patch embedding: a linear map of non-overlapping square patches of `size` pixels.

    Towers for video map `frames` frames together; an image is repeated for each of them. If they
    are `apart`, each frame has a matrix of its own. Columns of a matrix are ordered by channel and
    then by frame, or with `frames_first` the other way round. Files store a convolution or, if it
    is `flat`, a matrix whose columns have the same order.
    """

    size: int
    channels: int = 3
    bias: bool = False
    frames: int = 1
    apart: bool = False
    frames_first: bool = False
    flat: bool = False


class Tower:
    """A vision transformer: a frozen value with slots of its own and stacks of layers."""

    hidden_size: int
    layers: tuple[Layer, ...]

    @property
    def output_size(self) -> int:
        """Values per patch that go to the projector."""
        return self.hidden_size

    def embedding_values(self, image: ImageShape) -> int:
        """Most values at once while patches become vectors."""
        inside = prod(image.pixels) // max(image.patches, 1)
        return self.rows_at_once(image) * (inside + 3 * self.hidden_size)

    @property
    def interpolated_values(self) -> int:
        """Values of a table of position embeddings that is interpolated in float32."""
        return 0

    @property
    def stacks(self) -> Mapping[str, tuple[Layer, ...]]:
        """Layers by the slot that prefixes their names: `layer` if there is one stack."""
        return {"layer": self.layers}

    def rows_at_once(self, image: ImageShape) -> int:
        """Patches in one pass, and a class token if it encodes views one at a time."""
        return max((rows * columns + 1 for rows, columns in image.views), default=image.patches)


class Projector(Protocol):
    """Maps the tower's output to the language model's hidden size: a frozen value with slots."""


@runtime_checkable
class CountedProjector(Protocol):
    """A projector that has other values at once than most have."""

    def most_values(self, image: ImageShape, width: int, hidden_size: int) -> int:
        """Most values at once, from features of `width` to `hidden_size`."""


@dataclass(frozen=True)
class Transcripts:
    """How a model transcribes: its reply is a `language` in words, `mark`, and what was said.

    A reply that begins with `opening`, with the name of a language in it, has its text alone left.
    `languages` are codes of ISO 639 and these names.
    """

    opening: str
    mark: str
    languages: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TimedTranscripts:
    """The model does nothing but transcribe, a window of a recording after another.

    Its tokens say the language, the task, and when what was said begins and ends: see
    `mrs.run.transcription`.
    """


@dataclass(frozen=True)
class Vision:
    """What a model sees with; or hears with, if the layout is that of audio.

    placeholder       the text that stands for one image in a rendered prompt
    image_token_id    the token whose rows are replaced by image features
    enters            features replace the embeddings of image tokens, or cross-attention layers of
                      the language model attend to them
    is_bidirectional  the rows of one image attend to each other in both directions
    deep_layers       number of first layers of the language model whose output gets features added
                      (DeepStack, arXiv 2406.04334), too; those follow the others in each row
    edge              the token at both ends of an image's text, of which two images without text
                      between them share one
    video             how videos become images; None if the model takes none
    positions         `plain`: consecutive; `multimodal`: by time, row and column (see
                      `Rope.sections`), where a shape's `grid` is (rows, columns) of features
    transcripts       how the model transcribes, if it is made for that
    """

    tower: Tower
    projector: Projector
    layout: ImageLayout | AudioLayout
    placeholder: str
    image_token_id: int
    enters: Literal["embeddings", "cross_attention"] = "embeddings"
    is_bidirectional: bool = False
    deep_layers: int = 0
    edge: str | None = None
    video: VideoLayout | None = None
    positions: Literal["plain", "multimodal"] = "plain"
    transcripts: Transcripts | TimedTranscripts | None = None

    @property
    def image_layout(self) -> ImageLayout | None:
        """How images become pixels; None if the model takes none."""
        return None if isinstance(self.layout, AudioLayout) else self.layout

    @property
    def audio_layout(self) -> AudioLayout | None:
        """How audio becomes a spectrogram; None if the model hears none."""
        return self.layout if isinstance(self.layout, AudioLayout) else None
