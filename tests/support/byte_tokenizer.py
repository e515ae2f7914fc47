"""A tokenizer that makes one token of each lower-case letter."""

from __future__ import annotations

from itertools import islice, product

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer(size: int = 0) -> Tokenizer:
    """`size` tokens, at least one per byte; the others join pairs with other characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = (pair for pair in product(letters, letters) if not "".join(pair).islower())
    merges = list(islice(pairs, max(0, size - len(letters) - 3)))
    words = ["<unk>", "<s>", "</s>", *letters, *map("".join, merges)]
    vocab = {token: i for i, token in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
