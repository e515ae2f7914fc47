"""Loads the images, videos and audio files of a conversation for one model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mrs.architecture.vision_spec import AudioLayout, ImageLayout, VideoLayout
from mrs.errors import NoRoom, Unsupported, UsageError
from mrs.media.audio_file import read_samples
from mrs.media.audio_pieces import AudioPiece, cut_audio
from mrs.media.decoded_image import DecodedImage
from mrs.media.image_processors import Prepared, PreparedImage, prepare_image
from mrs.media.image_source import image_name, singular
from mrs.media.log_mel import log_mel
from mrs.media.lru_cache import LruCache
from mrs.media.media_memory import MediaMemory
from mrs.media.open_image import open_image
from mrs.media.recording import Recording, read_recording
from mrs.media.video_file import DEFAULT_VIDEO_LIMITS
from mrs.media.video_frames import prepare_video
from mrs.process.memory_room import MemoryRoom
from mrs.request import Media, MediaKind, Message

#: Prepared images that are cached for the next request of a conversation, and bytes of others.
_CACHED_IMAGES = 16
_CACHED_VIDEO_BYTES = 512 * 2**20
_VIDEO_SHARE = 0.5
_HINTS: Mapping[MediaKind, str] = {
    "image": "use a vision model",
    "video": "give images of it, or use a model of the Qwen-VL families",
    "audio": "use a model that hears, such as Qwen3-ASR",
}
#: Of float32.
_VALUE_BYTES = 4


@dataclass(frozen=True)
class PreparedMedia:
    """An image or audio, or a video as several images, and the `text` for it in the prompt."""

    images: tuple[Prepared, ...]
    text: str
    is_video: bool = False


class MediaLoader:
    """Opens images, videos and audio files, and runs the model's processors on them.

    Images of earlier requests are opened again, but not processed again. Those whose longer edge
    exceeds `max_edge` pixels are scaled down first. A model takes what it has a layout of, and of
    audio files those of at most `max_audio_seconds`.
    All that are in use or cached have at most `most_bytes` for the model, and `memory` while they
    are opened.
    """

    def __init__(
        self,
        layout: ImageLayout | None,
        max_edge: int | None = None,
        video: VideoLayout | None = None,
        most_bytes: int | None = None,
        memory: MediaMemory | None = None,
        *,
        audio: AudioLayout | None = None,
        max_audio_seconds: int = 0,
    ) -> None:
        self._memory = memory or MediaMemory()
        self._layout = layout
        self._video = video
        self._audio = audio
        self._max_audio_seconds = max_audio_seconds
        self._max_edge = max_edge
        self._prepared: OrderedDict[int, PreparedImage] = OrderedDict()
        self._lock = threading.Lock()
        self._room = MemoryRoom(most_bytes)
        self._video_limits = DEFAULT_VIDEO_LIMITS
        cached = _CACHED_VIDEO_BYTES
        if most_bytes is not None:
            cached = min(cached, int(_VIDEO_SHARE * most_bytes))
            used = min(DEFAULT_VIDEO_LIMITS.used_bytes, cached)
            self._video_limits = replace(DEFAULT_VIDEO_LIMITS, used_bytes=used)
        self._whole: LruCache[bytes, PreparedMedia] = LruCache(cached)

    def load(self, messages: Sequence[Message]) -> list[PreparedMedia]:
        """All of a conversation in order.

        Raises NotReadable for an unusable one, and Unsupported for one of a kind that the model, or
        this installation, cannot take.
        """
        prepared: list[PreparedMedia] = []
        before_bytes = 0
        for media in (media for message in messages for media in message.get("images", ())):
            self.check_kind(media.kind, media.name)
            prepared.append(self._loaders[media.kind](media, before_bytes))
            before_bytes += sum(map(_size_bytes, prepared[-1].images))
        return prepared

    def check_kind(self, kind: MediaKind, name: str) -> None:
        """Raise Unsupported for a kind that the model does not take; `name` is its address."""
        layouts = {"image": self._layout, "video": self._video, "audio": self._audio}
        if layouts[kind] is None:
            raise Unsupported(
                f"this model takes no {singular(kind)}s", where=image_name(name), hint=_HINTS[kind]
            )

    @property
    def _loaders(self) -> Mapping[MediaKind, Callable[[Media, int], PreparedMedia]]:
        return {
            "image": self._load_image,
            "video": self._load_video,
            "audio": self._load_audio,
        }

    def cut(self, audio: Media, most_seconds: int) -> list[AudioPiece]:
        """The pieces of a recording, none longer than `most_seconds` or what is planned for.

        Raises as `load` does.
        """
        self.check_kind(audio.kind, audio.name)
        return cut_audio(audio, self._memory, min(most_seconds, self._max_audio_seconds))

    def recording(self, audio: Media) -> Recording:
        """A whole recording, which takes room until it is given up. Raises as `load` does."""
        self.check_kind(audio.kind, audio.name)
        assert self._audio is not None
        recording = read_recording(audio, self._audio, self._memory)
        self._take_room(recording.spectrogram.nbytes, 0)
        self._room.give_back_with(recording, recording.spectrogram.nbytes)
        return recording

    def _load_image(self, media: Media, before_bytes: int) -> PreparedMedia:
        """An image; those before it in the conversation have `before_bytes`."""
        with self._memory.decoding():
            image = self._prepare(open_image(media, self._memory), before_bytes)
        return PreparedMedia((image,), image.shape.text)

    def _load_video(self, video: Media, before_bytes: int) -> PreparedMedia:
        assert self._video is not None
        if (cached := self._whole.get(video.digest)) is not None:
            return cached
        images, text = prepare_video(
            self._video, video, self._memory, self._max_edge, self._video_limits
        )
        media = PreparedMedia(tuple(images), text, is_video=True)
        self._remember(video, media, before_bytes)
        return media

    def _load_audio(self, audio: Media, before_bytes: int) -> PreparedMedia:
        assert self._audio is not None
        if (cached := self._whole.get(audio.digest)) is not None:
            return cached
        longest = self._max_audio_seconds
        with self._memory.decoding():
            hint = "cut it, or raise --max-audio-seconds"
            samples = read_samples(audio, self._memory, longest, hint)
            spectrogram = log_mel(samples, self._audio.mel, self._audio.least)
        shape = self._audio.shape(len(samples))
        digest = int.from_bytes(audio.digest[:8], "big") >> 1
        media = PreparedMedia((PreparedImage(spectrogram, shape, digest),), shape.text)
        self._remember(audio, media, before_bytes)
        return media

    def _remember(self, file: Media, prepared: PreparedMedia, before_bytes: int) -> None:
        """Take room for what was made of a file, as long as it is used or remembered."""
        size_bytes = sum(map(_size_bytes, prepared.images))
        self._take_room(size_bytes, before_bytes)
        for image in prepared.images:
            self._room.give_back_with(image, _size_bytes(image))
        self._whole.put(file.digest, prepared, size_bytes=size_bytes)

    def _prepare(self, decoded: DecodedImage, before_bytes: int) -> PreparedImage:
        with self._lock:
            if (cached := self._prepared.get(decoded.digest)) is not None:
                self._prepared.move_to_end(decoded.digest)
                return cached
        assert self._layout is not None
        image = decoded.image
        if self._max_edge is not None and max(image.size) > self._max_edge:
            image = image.copy()
            image.thumbnail((self._max_edge, self._max_edge))
        size_bytes = _VALUE_BYTES * prod(self._layout.shape(image.height, image.width).pixels)
        self._take_room(size_bytes, before_bytes)
        try:
            prepared = prepare_image(self._layout, image, decoded.digest)
        except BaseException:
            self._room.give_back(size_bytes)
            raise
        self._room.give_back_with(prepared, size_bytes)
        with self._lock:
            self._prepared[decoded.digest] = prepared
            if len(self._prepared) > _CACHED_IMAGES:
                self._prepared.popitem(last=False)
        return prepared

    def _take_room(self, size_bytes: int, before_bytes: int) -> None:
        """Forget cached images for a new one, if necessary.

        Raises UsageError if the conversation's images together need too much, or else NoRoom.
        """
        if not self._room.fits(before_bytes + size_bytes):
            kind = singular("image" if self._audio is None else "audio")
            raise UsageError(
                f"the {kind}s need more memory than there is for those of one request",
                hint="send fewer",
            )
        while True:
            try:
                return self._room.take(size_bytes, "images")
            except NoRoom:
                with self._lock:
                    if not self._prepared:
                        raise
                    self._prepared.popitem(last=False)


def _size_bytes(image: Prepared) -> int:
    """What it takes: pixels in float32, or the bytes of frames."""
    per_value = _VALUE_BYTES if isinstance(image, PreparedImage) else 1
    return per_value * prod(image.shape.pixels)
