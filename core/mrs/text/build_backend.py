"""Builds a tokenizer of the `tokenizers` library from what a file describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mrs.errors import NotReadable
from mrs.text.backend import backend_errors
from mrs.text.pre_tokenizers import PreTokenization
from mrs.text.vocabulary import (
    Around,
    Described,
    SpaceRules,
    TokenType,
    Vocabulary,
    WordPieceRules,
)

if TYPE_CHECKING:
    import tokenizers

#: A score that no path through a text takes if there is another one.
_NEVER = -1e9
#: Tokens that Phi 3 leaves alone, with the white space after them.
_KEEP_SPACE = frozenset(("<unk>", "<s>", "<|endoftext|>"))


def build_backend(described: Described) -> tokenizers.Tokenizer:
    """The tokenizer, without a post-processor; control tokens match in texts before all rules.

    Raises NotReadable if merges and tokens contradict each other.
    """
    rules = described.rules
    if isinstance(rules, PreTokenization):
        backend = _byte_level(described, rules)
    elif isinstance(rules, SpaceRules):
        backend = _sentencepiece(described, rules)
    else:
        backend = _word_pieces(described, rules)
    _add_tokens(backend, described)
    return backend


def _byte_level(described: Described, rules: PreTokenization) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers

    with backend_errors("merges and tokens disagree", where=described.where):
        model = models.BPE(
            vocab=described.vocabulary.ids_by_text,
            merges=list(described.merges),
            ignore_merges=rules.ignore_merges,
        )
    backend = tokenizers.Tokenizer(model)
    if rules.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(described: Described, rules: SpaceRules) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    with backend_errors("merges and tokens disagree", where=described.where):
        backend = tokenizers.Tokenizer(
            _unigram(described.vocabulary) if rules.is_unigram else _pairs(described)
        )
    steps: list[normalizers.Normalizer] = []
    if rules.rewrites:
        with backend_errors("the table of characters is malformed", where=described.where):
            steps.append(normalizers.Precompiled(rules.rewrites))
    if rules.collapses:
        steps.append(normalizers.Replace(Regex(r"\A +|[ ▁]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if rules.prefix == "always":
        steps.append(normalizers.Prepend("▁"))
    steps.append(normalizers.Replace(" ", "▁"))
    backend.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if rules.prefix == "first":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    elif rules.is_unigram and described.vocabulary.of_types(TokenType.BYTE):
        # The library would take a byte's name in a text for the byte.
        inside_name = Regex("(?<=<)(?=0x[0-9A-F]{2}>)")
        backend.pre_tokenizer = pre_tokenizers.Split(inside_name, behavior="isolated")
    strip = [] if rules.prefix == "never" else [decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _pairs(described: Described) -> tokenizers.models.BPE:
    from tokenizers import models

    vocabulary = described.vocabulary
    unknown = vocabulary.of_types(TokenType.UNKNOWN)
    return models.BPE(
        vocab=vocabulary.ids_by_text,
        merges=list(described.merges or merges_by_score(vocabulary)),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=bool(vocabulary.of_types(TokenType.BYTE)),
    )


def _unigram(vocabulary: Vocabulary) -> tokenizers.models.Unigram:
    """Unused pieces are never found in a text; others that are no text do not lower the worst
    score, with which unknown characters are compared."""
    from tokenizers import models

    rows = list(zip(vocabulary.texts, vocabulary.types, vocabulary.scores, strict=True))
    scores = [score for _, kind, score in rows if kind == TokenType.NORMAL]
    instead = {TokenType.UNUSED: _NEVER, TokenType.BYTE: min(scores, default=0.0)}
    unknown = vocabulary.of_types(TokenType.UNKNOWN)
    return models.Unigram(
        [(text, instead.get(TokenType(kind), score)) for text, kind, score in rows],
        unk_id=vocabulary.ids_by_text[unknown[0]] if unknown else None,
        byte_fallback=bool(vocabulary.of_types(TokenType.BYTE)),
    )


def merges_by_score(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """The merges that make BPE join pieces as SentencePiece does: best score first.

    Each split of a piece into two pieces is a merge; the longest left part comes first.
    """
    rows = zip(vocabulary.scores, vocabulary.texts, vocabulary.types, strict=True)
    scored = [(score, text) for score, text, kind in rows if kind == TokenType.NORMAL]
    scored.sort(key=lambda row: -row[0])
    pieces = {text for _, text in scored}
    for _, text in scored:
        for cut in range(len(text) - 1, 0, -1):
            left, right = text[:cut], text[cut:]
            if left in pieces and right in pieces:
                yield left, right


def _word_pieces(described: Described, rules: WordPieceRules) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    # The last of several equal pieces counts, as it does in BERT's own code.
    vocabulary = {text: token_id for token_id, text in enumerate(described.vocabulary.texts)}
    unknown = described.special_tokens.get("unk_token")
    if unknown not in vocabulary:
        raise NotReadable(
            "the vocabulary has no token for unknown words",
            where=described.where,
            hint=f"{unknown!r} is named" if unknown else "",
        )
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=rules.splits_chinese,
        strip_accents=rules.strips_accents,
        lowercase=rules.lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, described: Described) -> None:
    """Makes control and user-defined tokens match in text before all other rules."""
    from tokenizers import AddedToken

    vocabulary = described.vocabulary
    control = vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN)
    keep_space = _KEEP_SPACE if described.strips_after_control else set(control)
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, rstrip=t not in keep_space) for t in control if t]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t in vocabulary.of_types(TokenType.USER_DEFINED) if t]
    )


def put_around(backend: tokenizers.Tokenizer, around: Around, *, where: str) -> None:
    """Puts tokens around each text.

    Raises NotReadable for tokens that the vocabulary lacks, or whose names mean something here.
    """
    from tokenizers import processors

    items = (*around.one, *around.two)
    tokens = dict.fromkeys(item.removesuffix(":1") for item in items if not item.startswith("$"))
    try:
        backend.post_processor = processors.TemplateProcessing(
            single=list(around.one),
            pair=list(around.two),
            special_tokens=[(token, backend.token_to_id(token)) for token in tokens],
        )
    except (ValueError, TypeError) as error:
        named = " and ".join(map(repr, tokens))
        raise NotReadable(f"{named} cannot be put around texts", where=where) from error
