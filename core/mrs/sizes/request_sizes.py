"""What parts of requests take in memory, as measured: for the plan, and where each is enforced."""

from __future__ import annotations

#: Of a text while it is tokenized, for each of its bytes: measured 160 to 330.
ENCODED_BYTES = 340
#: Of an image while it is decoded, for each of its pixels: the file's, those of a plain mode and
#: the upright ones. Measured up to 12.1, and 16.1 of WebP, whose decoder has two copies more.
PIXEL_BYTES, WEBP_PIXEL_BYTES = 12, 16
#: Of a token that runs or waits: in the prompt, in the sequence, in the keys of the prefix cache.
TOKEN_BYTES = 96
#: Buffers and objects of one connection.
CONNECTION_BYTES = 64 * 1024
