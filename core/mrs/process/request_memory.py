"""What parts of requests take in memory, as measured: for the plan, and where it is enforced."""

from __future__ import annotations

#: Of a text while it is tokenized, for each of its bytes: measured 160 to 330.
ENCODED_BYTES = 340
#: Bytes that are read of a text which is only counted, or cut to fit: about half a second of
#: work; or bytes for each token of the context: longer texts are rare, and counted in pieces first.
CUT_TEXT_BYTES, TOKEN_TEXT_BYTES = 2**19, 8
#: A longer text is counted in pieces before it is tokenized whole.
WHOLE_TEXT_BYTES = 4 * 2**20
#: Of a grammar while it is compiled, within the limits of the work for it: measured up to 75 MiB.
COMPILING_BYTES = 80 * 2**20
#: Of an image while it is decoded, for each of its pixels: the file's, those of a plain mode and
#: the upright ones. Measured up to 12.1, and 16.1 of WebP, whose decoder has two copies more.
PIXEL_BYTES, WEBP_PIXEL_BYTES = 12, 16
#: Of a second of audio while it is decoded and its spectrogram is made: the samples, filled up and
#: mirrored, in 4 bytes each, and the values of 128 bands twice. Measured up to 0.26 MB.
AUDIO_SECOND_BYTES = 320_000
#: Of a second of a recording while it is decoded and cut into pieces, which are heard one after
#: another: the samples, and the pieces of half their size. The longest takes 173 MB.
RECORDING_SECOND_BYTES, LONGEST_RECORDING_S = 96_000, 1800
#: Of a second of a recording that becomes one spectrogram: the samples, and 128 bands.
SPECTROGRAM_SECOND_BYTES = 128_000
#: Pictures that a video's decoder has at once, beside one in each of its threads: those that later
#: ones may refer to, at most 16 in any format, the one that is shown, and the edges around all of
#: them. Measured up to 16.
VIDEO_PICTURES = 20
#: Of a token that runs or waits: in the prompt, in the sequence, in the keys of the prefix cache.
TOKEN_BYTES = 96
#: Buffers and objects of one connection: measured 6 KiB, and 63 with a head that is half sent.
CONNECTION_BYTES = 96 * 1024
#: Of one with TLS, for which asyncio and OpenSSL have buffers of their own: measured 282 KiB, and
#: 457 with a head that is half sent.
TLS_CONNECTION_BYTES = 512 * 1024
