"""Reads how a reranker scores texts from the files of sentence-transformers."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.ranking import Ranking, TokenScore
from mrs.architecture.readers.readout_reader import LOGIT_SCORE, SentenceFilesLike, read_prompts
from mrs.errors import NotReadable, Unsupported


def read_ranking(files: SentenceFilesLike, vocab_size: int, where: str) -> Ranking:
    """The tokens of the answer, and the prompt. Raises NotReadable and Unsupported."""
    tokens = None
    for module in files.modules:
        if module.kind == LOGIT_SCORE:
            config = Config(module.config, f"{where}/{module.folder}")
            no = config.integer("false_token_id") if config.has("false_token_id") else None
            tokens = TokenScore(config.integer("true_token_id"), no)
            if not all(0 <= each < vocab_size for each in (tokens.yes_id, no or 0)):
                raise NotReadable(f"it has no tokens {tokens.yes_id} and {no}", where=config.where)
    prompts, default = read_prompts(Config(files.settings, where))
    return Ranking(tokens, dict(prompts).get(default or ""), _begins_reply(files, where))


def _begins_reply(files: SentenceFilesLike, where: str) -> bool:
    kinds = Config(files.transformer, where).mapping("processing_kwargs")
    settings = Config(Config(kinds, where).mapping("chat_template"), where)
    for key in settings.values:
        if key != "add_generation_prompt":
            raise Unsupported(f"the setting {key!r} of a chat template is not known", where=where)
    return settings.flag("add_generation_prompt", False)
