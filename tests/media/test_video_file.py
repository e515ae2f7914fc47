"""Videos are read in every container, upright, within limits; bad files are one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mrs.errors import NotReadable, Unsupported
from mrs.media import video_file
from mrs.media.media_memory import MediaMemory
from mrs.media.mpeg4_size import mpeg4_size
from mrs.media.open_image import open_image
from mrs.media.read_media import read_media, read_video, to_data_uri
from mrs.media.video_file import VideoFacts, VideoLimits
from mrs.media.video_names import video_type
from mrs.process.request_memory import PIXEL_BYTES
from mrs.request import Media
from support.video_files import av, frames_of, video

#: What encodes the sound of a container.
SOUNDS = {"mp4": "aac", "webm": "libopus", "avi": "ac3", "matroska": "aac"}


def same(image: Image.Image) -> Image.Image:
    return image


def read_facts(
    name: str, content: bytes, limits: VideoLimits = video_file.DEFAULT_VIDEO_LIMITS
) -> VideoFacts:
    return video_file.read_facts(Media.of(name, content, "video"), MediaMemory(), limits)


def read_frames(
    name: str,
    content: bytes,
    indices: Sequence[int],
    use: Callable[[Image.Image], Image.Image],
    memory: MediaMemory | None = None,
) -> list[Image.Image]:
    media = Media.of(name, content, "video")
    return video_file.read_frames(media, indices, use, memory or MediaMemory())


def described(path: str) -> VideoFacts:
    """What a chat does with a path before it asks the model."""
    return video_file.read_facts(read_media(path), MediaMemory())


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("container", "codec", "suffix", "kind"),
    [
        ("mp4", "mpeg4", "mp4", "video/mp4"),
        ("mov", "mpeg4", "mov", "video/quicktime"),
        ("matroska", "mpeg4", "mkv", "video/x-matroska"),
        ("webm", "libvpx", "webm", "video/webm"),
        ("avi", "mpeg4", "avi", "video/x-msvideo"),
    ],
)
def test_containers(tmp_path: Path, container: str, codec: str, suffix: str, kind: str) -> None:
    content = video(container=container, codec=codec)
    path = tmp_path / f"a film.{suffix}"
    path.write_bytes(content)
    assert video_type(content) == kind
    facts = read_facts(str(path), content)
    assert (facts.frames, facts.rate, facts.width, facts.height) == (40, 10.0, 64, 48)
    expected = frames_of(content)
    found = read_frames(str(path), content, [0, 7, 7, 39], same)
    for image, index in zip(found, (0, 7, 7, 39), strict=True):
        assert np.array_equal(np.asarray(image), expected[index])
    read = read_media(str(path))
    assert (read.name, read.content, read.kind) == (str(path), content, "video")
    held = to_data_uri(read)
    assert held.startswith(f"data:{kind};name=")
    assert read_media(held) == read == read_video(str(path))


def test_a_title_in_another_encoding_spoils_no_video() -> None:
    content = video(1.0, container="matroska", title="caf-")
    assert content.count(b"caf-") == 1
    assert read_facts("a.mkv", content.replace(b"caf-", b"caf\xe9")).frames == 10


def test_frames_beyond_the_end_are_the_last_one() -> None:
    content = video(1.0)
    found = read_frames("a.mp4", content, [3, 9, 12], same)
    assert found[1] is found[2]


def test_rotated_files_are_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    class Turned:
        """A frame that has to be rotated by 90 degrees counterclockwise."""

        rotation = -270

        def to_image(self) -> Image.Image:
            return Image.fromarray(np.array([[[1] * 3, [2] * 3]], dtype=np.uint8))

    image = video_file._upright(Turned())
    assert image.size == (1, 2)
    assert np.asarray(image)[:, 0, 0].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not a mp4, m4v, mov, mkv, webm or avi file"),
        (b"#EXTM3U\n#EXTINF:3,\n/etc/hostname\n", "it is not a mp4"),
        (b"\0\0\0\x20ftypisom" + b"\0" * 500, "it is damaged"),
        (b"\0\0\0\x20ftypavif" + b"\0" * 500, "it is not a mp4"),
        (video()[:700], "it is damaged"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    for read in (read_media, read_video):
        with pytest.raises(NotReadable, match=reason) as raised:
            video_file.read_facts(read(str(path)), MediaMemory())
        assert "\n" not in str(raised.value)
        assert raised.value.what == f"video {path} cannot be read"


def test_other_containers_are_not_opened(tmp_path: Path) -> None:
    """Some could name further files."""
    named = tmp_path / "other.mp4"
    named.write_bytes(video())
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n{named}\n#EXT-X-ENDLIST\n".encode()
    for content in (playlist, video(container="mpegts", codec="mpeg2video", rate=25)):
        with pytest.raises(NotReadable, match="damaged"):
            read_facts("a.mp4", content)


@pytest.mark.parametrize(
    ("container", "codec", "pixels"),
    [
        ("mp4", "jpeg2000", "rgb24"),
        ("avi", "jpeg2000", "yuv420p"),
        ("avi", "cinepak", "rgb24"),
        ("matroska", "ffv1", "yuv420p"),
        ("mov", "qtrle", "rgb24"),
    ],
)
def test_formats_that_no_browser_plays_are_not_decoded(
    container: str, codec: str, pixels: str
) -> None:
    """FFmpeg has hundreds of decoders, and some had holes that a film leads to."""
    content = encoded(container, codec, pixels)
    for read in (read_facts, lambda *file: read_frames(*file, [0], same)):
        with pytest.raises(NotReadable, match="none of the formats h264, hevc, av1"):
            read("a.mp4", content)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mp4", "libx264"), ("mp4", "libx265"), ("mp4", "libsvtav1"), ("webm", "libvpx-vp9"),
     ("webm", "libvpx"), ("avi", "mpeg4"), ("avi", "mjpeg"), ("matroska", "mpeg2video")],
)  # fmt: skip
def test_formats_of_cameras_and_browsers_are_decoded(container: str, codec: str) -> None:
    content = encoded(container, codec, "yuvj420p" if codec == "mjpeg" else "yuv420p", sound=True)
    assert read_facts("a.mp4", content).frames == 4
    assert len(read_frames("a.mp4", content, [0, 3], same)) == 2


def encoded(container: str, codec: str, pixels: str, *, sound: bool = False) -> bytes:
    """A video of four frames of 32 pixels, with a sound in the container's usual format."""
    content = io.BytesIO()
    with av.open(content, "w", format=container) as out:
        stream = out.add_stream(codec, rate=5)
        stream.width = stream.height = 32
        stream.pix_fmt = pixels
        audio = out.add_stream(SOUNDS[container], rate=48000) if sound else None
        for shade in range(4):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 60 * shade, np.uint8))
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
        if audio is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((2, 960), np.float32), "fltp", "stereo")
            silence.sample_rate = 48000
            out.mux(audio.encode(silence))
            out.mux(audio.encode())
    if hasattr(os, "sched_setscheduler"):
        # SVT-AV1 makes the thread that opens it one of real time, where it may, and leaves it so.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return content.getvalue()


def test_missing_files_and_sounds(tmp_path: Path) -> None:
    with pytest.raises(NotReadable, match=r"video .*no\.mp4 cannot be read"):
        read_media(str(tmp_path / "no.mp4"))
    silent = tmp_path / "a.mkv"
    with av.open(str(silent), "w", format="matroska") as out:
        stream = out.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    with pytest.raises(NotReadable, match="it has no video"):
        described(str(silent))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (VideoLimits(pixels=64 * 48 - 1), "million pixels"),
        (VideoLimits(frames=39), "more than 39 frames"),
    ],
)
def test_limits(limits: VideoLimits, reason: str) -> None:
    content = video()
    read_facts("a.mp4", content, VideoLimits(pixels=64 * 48, frames=40))
    with pytest.raises(NotReadable, match=reason):
        read_facts("a.mp4", content, limits)


def test_large_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with path.open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(NotReadable, match="more than 256 MiB"):
        read_media(str(path))


def test_without_av(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(video())
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(Unsupported, match="videos need the package av") as raised:
        described(str(path))
    assert raised.value.hint == "pip install av"
    picture = tmp_path / "a.png"
    Image.new("RGB", (3, 2)).save(picture)
    assert open_image(read_media(str(picture))).image.size == (3, 2)


def test_a_named_image_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (3, 2)).save(path)
    with pytest.raises(NotReadable, match="it is not a mp4"):
        read_video(str(path))
    unnamed = tmp_path / "clip"
    unnamed.write_bytes(video())
    assert read_media(str(unnamed)).kind == "video"


def test_a_video_has_room_while_it_is_decoded() -> None:
    memory, taken = MediaMemory(), list[int]()

    def use(image: Image.Image) -> Image.Image:
        taken.append(memory.room.used_bytes)
        return image

    read_frames("a.mp4", video(), [0, 1], use, memory)
    assert memory.room.used_bytes == 0
    assert taken[0] == taken[1] >= 64 * 48 * (20 * 1.5 + PIXEL_BYTES)
    large = video(size=(320, 240), codec="libx264")
    read_frames("a.mp4", large, [0], use, memory)
    memory.room.most_bytes = taken[-1]
    assert len(read_frames("a.mp4", large, [0, 1], use, memory)) == 2
    memory.room.most_bytes = taken[-1] - 1
    with pytest.raises(NotReadable, match="more memory than there is for videos"):
        read_frames("a.mp4", large, [0, 1], use, memory)
    assert memory.room.used_bytes == 0


@pytest.mark.parametrize(
    ("container", "codec"), [("matroska", "libvpx"), ("matroska", "mpeg4"), ("mp4", "mpeg4")]
)
def test_a_file_has_room_before_a_decoder_sees_it(
    container: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library decodes the first frames of some files to know what is in them."""
    memory, opened = MediaMemory(), list[tuple[str, int]]()
    film = Media.of("a.mkv", video(container=container, codec=codec), "video")
    open_file = av.open

    def noting(file: object, options: dict[str, str], **more: object) -> object:
        opened.append((options["codec_whitelist"], memory.room.used_bytes))
        return open_file(file, options=options, **more)

    monkeypatch.setattr(av, "open", noting)
    video_file.read_facts(film, memory)
    video_file.read_frames(film, [0], same, memory)
    for decoders, taken in opened:
        assert decoders == "none" or taken == 4 * 64 * 48 * 8
    assert len(opened) == 4
    memory.room.most_bytes = 64 * 48
    for read in (
        video_file.read_facts,
        lambda *given: video_file.read_frames(film, [0], same, memory),
    ):
        opened.clear()
        with pytest.raises(NotReadable, match="more memory than there is for videos"):
            read(film, memory)
        assert [decoders for decoders, _ in opened] == ["none"]


@pytest.mark.parametrize(("container", "codec"), [("avi", "mjpeg"), ("mp4", "mpeg4")])
def test_later_frames_are_not_much_larger_than_the_file_says(container: str, codec: str) -> None:
    content = with_larger_frames((640, 480), container, codec)
    assert len(read_frames("a.avi", content, [0, 1], lambda image: image)) == 2
    with pytest.raises(NotReadable, match="damaged"):
        read_frames("a.avi", content, [0, 1, 2, 3], lambda image: image)


@pytest.mark.parametrize("rate", [1, 25, 30000 / 1001, 240])
@pytest.mark.parametrize("size", [(24, 100), (642, 362), (16, 2048)])
def test_the_head_of_a_stream_says_how_large_its_frames_are(
    size: tuple[int, int], rate: float
) -> None:
    content = video(2 / rate, size, rate=rate)
    with av.open(io.BytesIO(content)) as file:
        head = file.streams.video[0].codec_context.extradata
    assert mpeg4_size(head) == size
    for end in range(len(head)):
        assert mpeg4_size(head[:end]) in (None, size)


@pytest.mark.parametrize(
    "head", [b"", b"\0\0\1 ", b"\0\0\1 " + bytes(64), b"\0\0\1 " + b"\xff" * 64]
)
def test_a_head_that_does_not_say_it_has_no_size(head: bytes) -> None:
    assert mpeg4_size(head) is None


def with_larger_frames(size: tuple[int, int], container: str, codec: str) -> bytes:
    """A file of two frames of 64 x 48 pixels, as its head says, and two larger ones."""
    colours = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=10)
        larger = av.CodecContext.create(codec, "w")
        for encoder, (width, height) in ((stream, (64, 48)), (larger, size)):
            encoder.width, encoder.height, encoder.pix_fmt = width, height, colours
            encoder.time_base = Fraction(1, 10)
        for index, encoder in enumerate((stream, stream, larger, larger)):
            picture = np.full((encoder.height, encoder.width, 3), 100, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format=colours)
            frame.pts, frame.time_base = index, Fraction(1, 10)
            for packet in encoder.encode(frame):
                packet.stream = stream
                out.mux(packet)
    return file.getvalue()


MEASURED = """
import re, sys
from pathlib import Path
from mrs.media.media_memory import MediaMemory
from mrs.media.video_file import read_frames
from mrs.request import Media

def peak_bytes():
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+)", text)[1]) << 10

small, large = (Path(name).read_bytes() for name in sys.argv[1:])
small, large = (Media.of("a.mp4", each, "video") for each in (small, large))
memory = MediaMemory()
read_frames(small, [0], lambda image: image, memory)
before = peak_bytes()
taken = []
read_frames(large, [18], lambda image: taken.append(memory.room.used_bytes) or image, memory)
print(taken[0], peak_bytes() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_room_of_a_video_is_what_its_decoder_takes(tmp_path: Path) -> None:
    options = {"refs": "16", "bf": "4", "preset": "ultrafast"}
    for name, size in (("small", (64, 48)), ("large", (1280, 720))):
        content = video(2.0, size, codec="libx264", options=options)
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / name) for name in ("small", "large")]
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *files], capture_output=True, text=True, check=True
    )
    taken, used = map(int, ended.stdout.split())
    assert taken / 4 < used < taken, (taken, used)
