"""Grammars of strangers are compiled first where that can be ended."""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mrs.errors import Unsupported, UsageError
from mrs.grammar import trial
from mrs.grammar.compiler import GrammarCompiler
from mrs.process.work import Abandoned, Work, doing
from mrs.request import Grammar
from mrs.run.loaded_model import LoadedModel
from support.suites import first

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no timers of processor time")


def schema(**fields: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(fields))


#: llguidance would compile each, or refuse it, after 3 to 50 s.
ENDLESS = {
    "patterns for names": schema(patternProperties={f"^a{i}_": {} for i in range(300)}),
    "required names": schema(type="object", required=[str(i) for i in range(100_000)]),
    "optional names": schema(type="object", properties={f"p{i}": {} for i in range(6000)}),
}


def used_s() -> float:
    """Processor time of this process and of those that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


@pytest.fixture
def strict(model: LoadedModel) -> Iterator[GrammarCompiler]:
    """The compiler of a server."""
    compiler = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
    compiler.limit(2**28)
    compiler.prepare()
    yield compiler
    trial.trial.stop()


@pytest.mark.parametrize("name", first(1, ENDLESS))
def test_a_grammar_that_takes_too_long_is_refused_soon(strict: GrammarCompiler, name: str) -> None:
    strict.masks(Grammar("regex", "a"))
    before_s = used_s()
    with pytest.raises(UsageError, match="takes too long to compile: give a simpler one"):
        strict.masks(ENDLESS[name])
    assert used_s() - before_s < trial.MAX_SECONDS + 0.6
    strict.masks(Grammar("regex", "yes"))  # in another process


REFUSED: dict[str, Callable[[str], Grammar]] = {
    "schema": lambda control: schema(type="strng"),
    "keyword": lambda control: schema(type="object", unevaluatedProperties=False),
    "regular expression": lambda control: Grammar("regex", "(?=a)b"),
    "rule": lambda control: Grammar("lark", "start: other"),
    "token": lambda control: Grammar("lark", f"start: {control} <|absent|>"),
    "number of a token": lambda control: Grammar("lark", "start: <[999999999]>"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_in_the_same_words(
    model: LoadedModel, strict: GrammarCompiler, name: str
) -> None:
    grammar = REFUSED[name](next(iter(model.tokenizer.control_ids)))
    usual = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
    said = []
    for compiler in (usual, strict):
        with pytest.raises((UsageError, Unsupported)) as refused:
            compiler.masks(grammar)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_grammars_with_control_tokens_are_compiled(
    model: LoadedModel, strict: GrammarCompiler
) -> None:
    for text, token in model.tokenizer.control_ids.items():
        if text.startswith("<"):
            strict.masks(Grammar("lark", f'start: {text} "a" <[{token}]>'))


def test_a_trial_ends_when_its_client_leaves(strict: GrammarCompiler) -> None:
    work, ended = Work(), list[BaseException]()

    def compile_for_client() -> None:
        with doing(work):
            try:
                strict.masks(ENDLESS["patterns for names"])
            except Abandoned as error:
                ended.append(error)

    thread = threading.Thread(target=compile_for_client)
    thread.start()
    while not trial.trial._lock._is_held:
        time.sleep(0.001)
    work.abandon()
    thread.join(60)
    assert len(ended) == 1
    strict.masks(Grammar("regex", "yes"))


def test_only_a_server_has_such_a_process(model: LoadedModel) -> None:
    trial.trial.stop()
    GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1})).masks(
        Grammar("regex", "yes")
    )
    assert trial.trial._process is None
