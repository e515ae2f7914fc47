"""A whole recording as a spectrogram, of which a model hears a window after another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import Tensor

from mrs.architecture.vision_spec import SAMPLES_PER_S, AudioLayout
from mrs.media.audio_file import read_samples
from mrs.media.image_processors import PreparedImage
from mrs.media.log_mel import log_mel
from mrs.media.media_memory import MediaMemory
from mrs.process.request_memory import LONGEST_RECORDING_S, SPECTROGRAM_SECOND_BYTES
from mrs.request import Media


@dataclass(eq=False)
class Recording:
    """`frames` of sound in `spectrogram` (bands, F), which goes on with a window of silence."""

    spectrogram: Tensor
    frames: int
    layout: AudioLayout
    digest: bytes

    @property
    def window_frames(self) -> int:
        return self.layout.chunk

    @property
    def frame_s(self) -> float:
        return self.layout.mel.hop / SAMPLES_PER_S

    @property
    def seconds(self) -> float:
        return self.frames * self.frame_s

    def window(self, frame: int) -> PreparedImage:
        """The window from a frame on, as a tower takes it."""
        part = self.spectrogram[:, frame : frame + self.window_frames]
        digest = hashlib.sha256(self.digest + frame.to_bytes(8)).digest()
        return PreparedImage(part, self.layout.shape(0), int.from_bytes(digest[:8]) >> 1)


def read_recording(audio: Media, layout: AudioLayout, memory: MediaMemory) -> Recording:
    """The recording in a file.

    What is loud is measured over all of it. Raises NotReadable, also for one that is longer than
    `LONGEST_RECORDING_S`.
    """
    with memory.decoding():
        samples = read_samples(
            audio, memory, LONGEST_RECORDING_S, second_bytes=SPECTROGRAM_SECOND_BYTES
        )
        silence = layout.chunk * layout.mel.hop
        spectrogram = log_mel(samples, layout.mel, len(samples) + silence)
    frames = max(len(samples) // layout.mel.hop, 1)
    return Recording(spectrogram, frames, layout, audio.digest)
