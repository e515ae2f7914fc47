"""Transcription as Whisper does it (arXiv 2212.04356, section 4.5): a window after another.

`speech_tokens.py` finds the tokens that say the language, the task and times. The reply to a window
keeps the rules of `window_reply.py`, `transcript.py` makes segments of it and says where the next
window begins, and `transcript_reply.py` is the whole as one reply.
"""
