"""The tokenizer of the vision model, and how images and chats are written as text."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from demo_training.text.vocabulary import SPECIALS as TEXT_SPECIALS
from demo_training.text.vocabulary import encode_chats, train_tokenizer

from .dialogues import Dialogue

IMAGE = "<image>"
SPECIALS = (*TEXT_SPECIALS, IMAGE)
IMAGE_ID = SPECIALS.index(IMAGE)
# Content is a text or a list of parts; images go first, whatever the order of the parts.
CHAT_TEMPLATE = """\
{%- macro written(content) -%}
{%- if content is string -%}
{{ content }}
{%- else -%}
{%- for part in content if part['type'] == 'image' -%}{{ '<image>\\n' }}{%- endfor -%}
{%- for part in content if part['type'] == 'text' -%}{{ part['text'] }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{{- written(message['content']) | trim + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def make_tokenizer(dialogues: Sequence[Dialogue], size: int) -> Tokenizer:
    """A tokenizer of `size` tokens for what is said in `dialogues`."""
    messages = (m for dialogue in dialogues for m in dialogue.written(""))
    return train_tokenizer((f"{m['role']}\n{m['content']}" for m in messages), size, SPECIALS)


def encode(
    tokenizer: Tokenizer, dialogues: Sequence[Dialogue], patches: int
) -> list[tuple[list[int], list[bool]]]:
    """Token ids of each dialogue, and which of them the model has to write itself.

    An image takes `patches` tokens.
    """
    return encode_chats(tokenizer, [d.written(IMAGE * patches) for d in dialogues])
