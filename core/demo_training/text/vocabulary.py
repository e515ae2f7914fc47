"""The tokenizer of the demo model and the form in which it reads a chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, START, END)  # ids 0, 1 and 2
# The pre-tokenizer that llama.cpp knows as "qwen2": each digit is a token of its own.
PRE_TOKENIZER = "qwen2"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

Messages = Sequence[dict[str, str]]


def train_tokenizer(
    texts: Iterable[str], size: int, specials: Sequence[str] = SPECIALS
) -> Tokenizer:
    """A byte-level BPE of exactly `size` tokens, of which `specials` are the first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} tokens, not {size}")
    return tokenizer


def render(messages: Messages, *, answer_next: bool = False) -> str:
    """The chat as one text, the same as `CHAT_TEMPLATE` makes it."""
    turns = (f"{START}{m['role']}\n{m['content'].strip()}{END}\n" for m in messages)
    return "".join(turns) + (f"{START}assistant\n" if answer_next else "")


def encode_chats(
    tokenizer: Tokenizer, chats: Sequence[Messages]
) -> list[tuple[list[int], list[bool]]]:
    """Token ids of each chat, and which of them the model has to write itself."""
    start, end = SPECIALS.index(START), SPECIALS.index(END)
    prefix = len(tokenizer.encode("assistant\n").ids) + 1
    encoded = tokenizer.encode_batch_fast([render(messages) for messages in chats])
    result = []
    for messages, encoding in zip(chats, encoded, strict=True):
        ids, own = encoding.ids, [False] * len(encoding.ids)
        starts = [at for at, token in enumerate(ids) if token == start]
        for message, at in zip(messages, starts, strict=True):
            if message["role"] == "assistant":
                stop = ids.index(end, at) + 1
                own[at + prefix : stop] = [True] * (stop - at - prefix)
        result.append((ids, own))
    return result
