"""Which of a model's files has its tokenizer."""

from __future__ import annotations

from mrs.source.folder import Folder

TOKENIZER_JSON, TEKKEN, MERGES = "tokenizer.json", "tekken.json", "merges.txt"
#: The files that can have a tokenizer; the first one that a model has counts. They are told apart
#: by content, for `tokenizer.model` is the name of several formats.
VOCABULARY_FILES = (
    TOKENIZER_JSON,
    TEKKEN,
    "tokenizer.model",
    "tiktoken.model",
    "qwen.tiktoken",
    "hy.tiktoken",
    "sentencepiece.bpe.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
#: What tokenizer_config.json leaves to files of their own in older models.
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def tokenizer_files(folder: Folder) -> tuple[str, ...]:
    """The files in a folder that its tokenizer is read from."""
    vocabulary = next((name for name in VOCABULARY_FILES if folder.has(name)), None)
    files = [] if vocabulary is None else [vocabulary]
    if vocabulary == "vocab.json":
        files.append(MERGES)
    return tuple(name for name in (*files, *SETTINGS_FILES) if folder.has(name))
