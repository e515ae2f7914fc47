"""Models that answer yes or no rank texts by transformers' logits of these tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from mrs.errors import Unsupported
from mrs.run.loaded_model import LoadedModel
from support.sentence_models import VOCABULARY, load, write_model

QUERY = "the key?"
DOCUMENTS = ["a cache keeps keys and values", "text", "tokens, tokens " * 5]
TASK = "value the text"
PAIRS = """[CLS] a: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") \
| first | default("find") }} b: {{ messages | selectattr("role", "eq", "query") \
| map(attribute="content") | first }} c: {{ messages | selectattr("role", "eq", "document") \
| map(attribute="content") | first }} [SEP]{% if add_generation_prompt %} d:{% endif %}"""
CHAT = """{% for message in messages %}[CLS] {{ message.role }} {{ message.content }} [SEP]\
{% endfor %}a:{% if not enable_thinking %} [SEP]{% endif %}"""


class Ranker(NamedTuple):
    loaded: LoadedModel
    reference: Any
    tokenizer: Any

    def score(self, ids: list[int], yes: int, no: int | None) -> float:
        with torch.inference_mode():
            logits = self.reference(torch.tensor([ids])).logits[0, -1].double()
        return 1 / (1 + math.exp(-float(logits[yes] - (0 if no is None else logits[no]))))


def write(folder: Path, template: str, **config: Any) -> Any:
    model = write_model(
        folder,
        "qwen3",
        "AutoModelForCausalLM",
        head_dim=16,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        **config,
    )
    (folder / "chat_template.jinja").write_text(template)
    return model


def write_files(folder: Path, score: dict[str, Any], **transformer: Any) -> None:
    kinds = {"": "base.modules.transformer.Transformer", "1_LogitScore": "x.LogitScore"}
    modules = [{"path": path, "type": kind} for path, kind in kinds.items()]
    prompts = {"prompts": {"web": TASK}, "default_prompt_name": "web"}
    (folder / "1_LogitScore").mkdir()
    for name, content in (
        ("modules.json", modules),
        ("1_LogitScore/config.json", score),
        ("config_sentence_transformers.json", prompts),
        ("sentence_bert_config.json", transformer),
    ):
        (folder / name).write_text(json.dumps(content))


def rendered(ranker: Ranker, messages: list[dict[str, str]], **variables: Any) -> list[int]:
    text = ranker.tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    return ranker.tokenizer(text, add_special_tokens=False).input_ids


def opened(folder: Path, reference: Any) -> Ranker:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    return Ranker(load(folder), reference, tokenizer)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranker]:
    """A chat model without any files of sentence-transformers."""
    folder = tmp_path_factory.mktemp("judge")
    ranker = opened(folder, write(folder, CHAT))
    yield ranker
    ranker.loaded.close()


def test_the_words_yes_and_no_answer_for_a_chat_model(judge: Ranker) -> None:
    yes, no = VOCABULARY.index("yes"), VOCABULARY.index("no")
    ranked = judge.loaded.rank(QUERY, DOCUMENTS, instruction=TASK)
    assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
    system = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".'
    )
    for index, score, tokens in ranked:
        question = f"<Instruct>: {TASK}\n<Query>: {QUERY}\n<Document>: {DOCUMENTS[index]}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        ids = rendered(judge, messages, enable_thinking=False, add_generation_prompt=True)
        assert tokens == len(ids)
        assert score == pytest.approx(judge.score(ids, yes, no), abs=1e-5)


def test_documents_share_the_prefix_of_their_prompts(judge: Ranker) -> None:
    prompts = [judge.loaded.prompts.ranking.prompt(QUERY, each) for each in DOCUMENTS]
    (alone,) = judge.loaded.embedder.vectors(prompts[:1])
    cached = judge.loaded.engine.stats.cached_tokens
    (again,) = judge.loaded.embedder.vectors(prompts[:1])
    assert judge.loaded.engine.stats.cached_tokens > cached
    assert again.values == pytest.approx(alone.values, abs=1e-5)


def test_a_long_document_loses_its_end(judge: Ranker) -> None:
    prompts = judge.loaded.prompts.ranking
    with pytest.raises(Exception, match="512"):
        judge.loaded.rank(QUERY, ["tokens " * 999])
    cut, short = (prompts.prompt(QUERY, text, truncate=True).ids for text in ("no " * 999, "no"))
    assert len(cut) == 511
    assert list(cut[-3:]) == list(short[-3:])
    assert judge.loaded.rank(QUERY, ["tokens " * 999], truncate=True)[0].tokens <= 511


@pytest.mark.parametrize(
    ("score", "transformer"),
    [
        ({"true_token_id": 20, "false_token_id": 30}, {}),
        (
            {"true_token_id": 20, "false_token_id": None},
            {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}},
        ),
    ],
    ids=["difference", "one-token"],
)
def test_files_name_the_tokens_and_the_prompt(
    score: dict[str, Any], transformer: dict[str, Any], tmp_path: Path
) -> None:
    reference = write(tmp_path, PAIRS)
    write_files(tmp_path, score, **transformer)
    ranker = opened(tmp_path, reference)
    for index, found, _ in ranker.loaded.rank(QUERY, DOCUMENTS):
        texts = {"system": TASK, "query": QUERY, "document": DOCUMENTS[index]}
        messages = [{"role": role, "content": text} for role, text in texts.items()]
        ids = rendered(ranker, messages, add_generation_prompt=bool(transformer))
        expected = ranker.score(ids, score["true_token_id"], score["false_token_id"])
        assert found == pytest.approx(expected, abs=1e-5)
    ranker.loaded.close()


def test_a_classifier_reads_the_template_of_pairs(tmp_path: Path) -> None:
    reference = write_model(
        tmp_path,
        "qwen3",
        "AutoModelForSequenceClassification",
        num_labels=1,
        head_dim=16,
        num_key_value_heads=4,
    )
    (tmp_path / "chat_template.jinja").write_text(PAIRS)
    ranker = opened(tmp_path, reference)
    ((_, score, _),) = ranker.loaded.rank(QUERY, DOCUMENTS[:1], instruction=TASK)
    texts = {"system": TASK, "query": QUERY, "document": DOCUMENTS[0]}
    ids = rendered(ranker, [{"role": role, "content": text} for role, text in texts.items()])
    with torch.inference_mode():
        logit = float(reference(torch.tensor([ids])).logits[0, 0])
    assert score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
    ranker.loaded.close()


@pytest.mark.parametrize(
    ("score", "transformer", "words"),
    [
        ({"true_token_id": 20, "false_token_id": 9999}, {}, "no tokens 20 and 9999"),
        ({"true_token_id": "yes"}, {}, "true_token_id"),
        (
            {"true_token_id": 20},
            {"processing_kwargs": {"chat_template": {"chat_template": "b"}}},
            "'chat_template' of a chat template",
        ),
    ],
)
def test_files_that_are_wrong_or_unknown(
    score: dict[str, Any], transformer: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write(tmp_path, PAIRS)
    write_files(tmp_path, score, **transformer)
    with pytest.raises(Exception, match=words):
        load(tmp_path)


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / "chat_template.jinja").unlink()
    loaded = load(tmp_path)
    with pytest.raises(Unsupported, match="does not rank"):
        loaded.rank(QUERY, DOCUMENTS)
    loaded.close()
