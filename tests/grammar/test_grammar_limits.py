"""Hostile grammars: they end in an error or a reply soon, and never in a crash."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from asking import ask

from mrs.errors import NoRoom, UsageError
from mrs.grammar.compiler import GrammarCompiler
from mrs.grammar.limits import with_deep_stack
from mrs.grammar.thought import Thought
from mrs.request import Grammar
from mrs.run.loaded_model import LoadedModel
from support.suites import suite_of


def chain(count: int) -> str:
    """Terminals that each contain the next one: llguidance recurses as deep as there are."""
    lines = [f'X{number}: "(" X{number + 1} ")"' for number in range(count)]
    return "\n".join(["start: X0", *lines, f'X{count}: "a"'])


def references(count: int) -> str:
    """Definitions that each refer to the next one."""
    arrays = {
        f"d{number}": {"type": "array", "items": {"$ref": f"#/$defs/d{number + 1}"}}
        for number in range(count)
    }
    return json.dumps({"$defs": {**arrays, f"d{count}": {}}, "$ref": "#/$defs/d0"})


def enumeration(count: int, end: str = "") -> str:
    return json.dumps({"enum": [f"{number}{end}" for number in range(count)]})


#: Grammars of a few bytes that expand to a text of a million, each in other words.
REPEATED = {
    "repetitions": Grammar("regex", "((a{100}){100}){100}"),
    "groups": Grammar("regex", "((ab){100}c){1000}"),
    "one repetition": Grammar("regex", "a{1000000}"),
    "terminal": Grammar("lark", "start: A\nA: /((a{100}){100}){100}/"),
    "rules": Grammar("lark", 'start: x~1000\nx: "a"~1000'),
    "pattern": Grammar("json_schema", '{"type": "string", "pattern": "^((a{100}){100}){100}$"}'),
    "GBNF": Grammar("gbnf", 'root ::= x{1000}\nx ::= "a"{1000}'),
    "constant": Grammar("json_schema", json.dumps({"const": "x" * 500_000})),
    "items": Grammar("json_schema", json.dumps({
        "type": "array", "minItems": 9000, "maxItems": 9000, "items": {"const": "xyz"}})),
}  # fmt: skip
#: Of those, one of each language.
ONE_OF_EACH = ("one repetition", "rules", "items", "GBNF")
TOO_LARGE = {
    "chain": Grammar("lark", chain(20_000)),
    "parentheses": Grammar("regex", "(" * 9000 + "a" + ")" * 9000),
    "references": Grammar("json_schema", references(20_000)),
    "text": Grammar("regex", "a" * 2**21),
    "depth": Grammar("json_schema", '{"items":' * 4000 + "{}" + "}" * 4000),
    "product": Grammar("lark", 'start: x29\nx0: "a"\n' + "\n".join(
        f"x{n + 1}: x{n} x{n} x{n}" for n in range(29))),
    "optional": Grammar("regex", "a?" * 1900 + "a" * 1900),
}  # fmt: skip
ANSWERED = {
    "chain": Grammar("lark", chain(300)),
    "references": Grammar("json_schema", references(600)),
    "repetition": Grammar("regex", "(([a-z]{1,1000}x){1,1000}y){1,1000}"),
    "alternatives": Grammar("regex", "(a|b)*a(a|b){1000}"),
    "items": Grammar("json_schema", '{"type": "array", "minItems": 1000000000}'),
    "enum": Grammar("json_schema", json.dumps({"enum": [str(n) * 50 for n in range(500)]})),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_grammar_that_is_too_large_is_refused(model: LoadedModel, name: str) -> None:
    start_s = time.process_time()
    with pytest.raises(UsageError) as refused:
        ask(model, TOO_LARGE[name])
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    assert time.process_time() - start_s < 30
    assert ask(model, Grammar("regex", "yes"))[0] == "yes"


@pytest.mark.parametrize(
    "grammar",
    [
        pytest.param(each, id=name, marks=suite_of(name, ONE_OF_EACH))
        for name, each in REPEATED.items()
    ],
)
def test_a_grammar_that_expands_to_a_long_text_is_refused_soon(
    model: LoadedModel, grammar: Grammar
) -> None:
    start_s = time.process_time()
    with pytest.raises(UsageError, match=r"without a choice|too large|is not valid"):
        ask(model, grammar, max_tokens=4)
    assert time.process_time() - start_s < 1


def test_a_long_text_that_a_grammar_forces_later_ends_the_reply(model: LoadedModel) -> None:
    text = '{"type": "string", "pattern": "^[bc](a{100}){900}$"}'
    start_s = time.process_time()
    with pytest.raises(UsageError, match=r"without a choice|too complex|cannot follow"):
        ask(model, Grammar("json_schema", text), max_tokens=2000)
    assert time.process_time() - start_s < 2


def test_a_mask_takes_a_bounded_time(model: LoadedModel) -> None:
    """Others wait in each step: the longest of twenty is looked at."""
    compiler = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
    mask = compiler.mask(Grammar("regex", "(.*)(.*)(.*)(.*)[^x]{1000}y|" + ".*a" * 300))
    logits = np.zeros(model.engine.spec.vocab_size, np.float32)
    used_s = []
    for _ in range(20):
        start_s = time.thread_time()
        mask(logits)
        used_s.append(time.thread_time() - start_s)
        mask.append(int(logits.argmax()))
    assert max(used_s) < 0.1


@pytest.mark.parametrize("name", ANSWERED)
def test_a_large_grammar_is_answered(model: LoadedModel, name: str) -> None:
    _, end = ask(model, ANSWERED[name], max_tokens=20)
    assert end.reason in ("stop", "length")


MANY_LARGE = """
import resource
from mrs.grammar.compiler import GrammarCompiler
import json
from mrs.run.model_loader import ModelLoader
from mrs.request import Grammar, ModelSource, RunRequest

model = ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load(print)
compiler = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
compiler.masks(Grammar("regex", "a"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for count in range(300, 314):
    choices = json.dumps({"enum": [f"{number} of {count}" for number in range(15_000)]})
    compiler.masks(Grammar("json_schema", choices))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.full
def test_many_large_grammars_are_not_all_kept() -> None:
    run = subprocess.run(
        [sys.executable, "-c", MANY_LARGE], capture_output=True, text=True, check=True
    )
    assert int(run.stdout.split()[-1]) < 768 * 1024  # KiB; each takes about 60 MiB


def test_a_grammar_that_is_asked_for_again_is_kept(model: LoadedModel) -> None:
    compiler = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
    compiler.masks(Grammar("regex", "kept"))
    for count in range(5):
        compiler.masks(Grammar("json_schema", enumeration(10_000, f" of {count}")))
        start_s = time.thread_time()
        compiler.masks(Grammar("regex", "kept"))
        assert time.thread_time() - start_s < 0.1
    assert (Grammar("regex", "kept"), Thought.NONE) in compiler._remembered


def hold(compiler: GrammarCompiler, text: str, owner: bytes = b"") -> object:
    return compiler.masks(Grammar("regex", text), owner=owner)


def test_one_owner_cannot_let_the_grammars_of_all_others_be_forgotten(model: LoadedModel) -> None:
    compiler = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
    for count in range(4):
        hold(compiler, f"other{count}", b"other")
    for count in range(60):
        hold(compiler, f"own{count}", b"own")
    kept = [(grammar.text, each.owner) for (grammar, _), each in compiler._remembered.items()]
    assert [value for value, owner in kept if owner == b"other"] == [
        f"other{count}" for count in range(4)
    ]
    assert kept[-1] == ("own59", b"own")


def test_grammars_of_replies_share_their_memory(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrs.grammar.compiler._WAIT_S", 0.0)
    compiler = GrammarCompiler(model.tokenizer, model.engine.spec.vocab_size, frozenset({1}))
    compiler.limit(2)  # no grammar is so small: each takes all
    held = hold(compiler, "first")
    with pytest.raises(NoRoom, match="all memory for grammars is in use"):
        hold(compiler, "second")
    assert hold(compiler, "first")
    assert held
    del held
    assert hold(compiler, "second")


def test_grammars_that_are_compiled_together_leave_stacks_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def slow(thread: threading.Thread) -> None:
        if thread.name == "mrs-grammar":
            started.append(thread)
            time.sleep(0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    before = threading.stack_size()

    def compile_later(delay_s: float) -> None:
        time.sleep(delay_s)
        with_deep_stack(lambda: None)

    threads = [threading.Thread(target=compile_later, args=(each,)) for each in (0, 0.1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = threading.stack_size(before)
    assert after == before
    assert len(started) == 2
