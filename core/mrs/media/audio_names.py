"""Which names and which bytes are those of an audio file."""

from __future__ import annotations

from mrs.errors import UsageError, shortened
from mrs.media.video_names import suffix_of

#: File name suffixes, and their MIME types.
AUDIO_TYPES = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "oga": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
}


def names_audio(source: str) -> bool:
    """Whether a path or an address has a suffix of audio files, or a data: URI the type of one."""
    if source[:5].lower() == "data:":
        return source[5:11].lower() == "audio/"
    return suffix_of(source) in AUDIO_TYPES


def audio_type(content: bytes) -> str | None:
    """The MIME type of an audio file by its first bytes; None for any other file."""
    if content[:4] in (b"RIFF", b"RF64") and content[8:12] == b"WAVE":
        return AUDIO_TYPES["wav"]
    if content.startswith(b"fLaC"):
        return AUDIO_TYPES["flac"]
    if content.startswith(b"OggS"):
        return AUDIO_TYPES["ogg"]
    if content[4:11] == b"ftypM4A":
        return AUDIO_TYPES["m4a"]
    # An MP3 file begins with its tags or with a frame: eleven bits that are 1, then a layer.
    is_frame = content[:1] == b"\xff" and len(content) > 1 and content[1] & 0xE6 == 0xE2
    return AUDIO_TYPES["mp3"] if is_frame or content.startswith(b"ID3") else None


def audio_uri(data: str, format: str) -> str:
    """A data: URI of `data` in base64, which is in a format of `AUDIO_TYPES` or webm.

    Raises UsageError for another.
    """
    if format.lower() not in (*AUDIO_TYPES, "webm"):
        *names, last = AUDIO_TYPES
        raise UsageError(
            f"the audio format {shortened(format, 20)!r} is not known",
            hint=f"send {', '.join(names)} or {last}",
        )
    return f"data:audio/{format.lower()};base64,{data}"
