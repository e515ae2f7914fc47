"""The commands that change a conversation or tell of it, in a pipe."""

from __future__ import annotations

import json
from dataclasses import fields

import fake_model
import pytest
from mrs_runs import Ran, Terminal

from mrs.events import Finished, ReplyUsage, TextDelta
from mrs.request import Grammar, Sampling
from mrs_cli.chat.chat_settings import setting_names

HELLO = "Hello! I am a **fake** model."
SNOW = "\u2603 snow, d\u00e9j\u00e0 vu"


@pytest.fixture
def chat(run_mrs):
    """`chat("hello", "\\undo")`: the lines go in, replies and notes come out."""

    def run(*said: str, model: str = "x", flags=()) -> Ran:
        return run_mrs("-i", *flags, "plain", "-m", model, stdin="\n".join(said) + "\n")

    return run


def notes(ran: Ran) -> list[str]:
    lines = ran.err.splitlines()[1:]
    return [line for line in lines if not line.startswith("first token")]


def contents(ran: Ran) -> list[str]:
    return [message["content"] for message in ran.models[0].asked[-1][0]]


def test_undo_takes_back_turn_after_turn(chat):
    ran = chat("hello", "snow", "\\undo", "history", "\\undo", "\\undo", "\\undo", "history")
    assert ran.out.splitlines()[2:] == [
        f"You said: user=hello assistant={HELLO}",
        "You said: none",
    ]
    assert notes(ran) == [
        "removed: snow",
        "removed: history",
        "removed: hello",
        "mrs: error: there is no message yet",
    ]


def test_adapter_is_chosen_by_name(chat, run_mrs):
    words = ("\\adapter", "hello", "\\adapter b", "hello", "\\adapter none", "hello", "/adapter c")
    asked = ["-i", "plain", "-m", "x", "--lora", "a=x", "--lora", "b=y"]
    ran = run_mrs(*asked, stdin="\n".join(words) + "\n")
    assert [sampling.adapter for _, sampling in ran.models[0].asked] == [None, "b", None]
    assert notes(ran) == [
        "adapter is none; choose a, b or none",
        "adapter is now b",
        "adapter is now none",
        "mrs: error: there is no adapter c: choose a, b or none",
    ]
    assert "no adapter is loaded" in chat("\\adapter a").err


def test_retry_asks_again_in_place(chat):
    ran = chat("hello", "snow", "\\retry", "/retry", "history")
    assert ran.out.splitlines()[1:4] == [SNOW] * 3
    assert contents(ran) == ["hello", HELLO, "snow", SNOW, "history"]


def test_edit_replaces_the_last_message(chat):
    ran = chat("hello", "\\edit snow", "history")
    assert ran.out.splitlines() == [HELLO, SNOW, f"You said: user=snow assistant={SNOW}"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("\\retry", "there is no message yet"),
        ("\\edit x", "there is no message yet"),
        ("\\undo", "there is no message yet"),
        ("\\save", "\\export needs a file name: such as \\export chat.md"),
        ("\\load", "\\open needs a session or a file: \\sessions lists the sessions"),
        ("\\load /none/such", "/none/such cannot be read (No such file or directory)"),
        ("\\save /none/such", "/none/such cannot be written (No such file or directory)"),
        ("\\set temprature 1", "unknown setting temprature: did you mean temperature?"),
        ("\\set zzz", "unknown setting zzz: \\set lists the settings"),
        (
            "\\set temperature 101",
            "error: temperature 101 is out of range: give a number from 0 to 100",
        ),
        ("\\set max-tokens -1", "error: max-tokens -1 is out of range"),
        (
            '\\set stop ["a"',
            'stop ["a" is not a list of texts: give a text, or several as ["A", "B"]',
        ),
        ('\\set stop [""]', "is not a list"),
        ("\\set logit-bias 3", "logit-bias 3 is not a bias: give token ids, each with a number"),
    ],
)
def test_what_cannot_be_is_said_and_the_chat_goes_on(chat, said, error):
    ran = chat(said, "hello")
    assert (ran.code, ran.out) == (0, f"{HELLO}\n")
    assert len(notes(ran)) == 1
    assert error in notes(ran)[0]


def test_edit_needs_its_text_where_no_line_can_be_filled_in(chat):
    ran = chat("hello", "\\edit", "history")
    assert notes(ran) == ["mrs: error: \\edit needs a text: give the whole new message after it"]
    assert contents(ran) == ["hello", HELLO, "history"]


def test_tokens_counts_the_context_and_the_cache(chat, monkeypatch):
    def reply(self, text, messages):
        yield TextDelta("three more words")
        yield Finished("stop", ReplyUsage(1200, 3, 1100, 0.1, 0.1))

    monkeypatch.setattr(fake_model.FakeModel, "_reply", reply)
    ran = chat("\\tokens", "one two", "\\tokens", "\\undo", "\\tokens")
    assert notes(ran) == [
        "context: 0 of 4,096 tokens used, 4,096 left",
        "context: 5 of 4,096 tokens used, 4,091 left",
        "last reply: 3 tokens, its prompt 1,200 tokens (1,100 cached)",
        "removed: one two",
        "context: 0 of 4,096 tokens used, 4,096 left",
    ]


def test_plan_says_layers_and_memory(chat):
    planned, cpu, empty, now, used = notes(chat("\\plan"))
    assert planned.split() == [
        *["planned", "layers", "weights", "KV", "cache", "activations", "runtime"]
    ]
    assert cpu.split()[:2] == ["cpu", "0\u20134"]
    assert (empty, now.split()) == ("", ["now", "used", "free"])
    assert used == "cpu  512 MiB  4.00 GiB"


def test_set_reaches_the_model(chat):
    ran = chat(
        "\\set temperature 0",
        "\\set top_k 7",
        "\\set Top-P 0.5",
        "\\set min_p 0.2",
        "\\set repetition_penalty 1.5",
        "\\set frequency_penalty -1",
        "\\set presence_penalty 2",
        "\\set max_tokens 99",
        '\\set stop ["a b", "c"]',
        "hello",
        "\\set stop END of it",
        "\\set top_k default",
        "\\set stop",
        "snow",
    )
    first, second = (sampling for _, sampling in ran.models[0].asked)
    assert first == Sampling(0, 7, 0.5, 0.2, 1.5, -1, 2, 99, ("a b", "c"))
    assert (second.top_k, second.stop) == (0, ("END of it",))
    assert notes(ran)[:2] == ["temperature is now 0", "top-k is now 7"]
    assert notes(ran)[-1] == "stop is END of it"


def test_set_of_thoughts(chat):
    ran = chat(
        "\\set reasoning-budget 9",
        "\\set reasoning_budget_message Enough of it.",
        "\\set reasoning_effort LOW",
        "hello",
        "\\set reasoning-budget -2",
        "\\set reasoning-effort huge",
        "\\set reasoning-effort default",
        "snow",
    )
    first, second = (sampling for _, sampling in ran.models[0].asked)
    assert first == Sampling(
        reasoning_budget=9, reasoning_budget_message="Enough of it.", reasoning_effort="low"
    )
    assert second.reasoning_effort is None
    assert "reasoning-budget -2 is out of range" in ran.err
    assert "reasoning-effort huge is not valid: give none, off" in ran.err


def test_what_set_shows_it_takes(chat):
    shown = (
        "dry-multiplier 0.123456789",
        'dry-sequence-breakers ["\\n", ":"]',
        "logit-bias 3=-5 17=0.25",
        'stop ["[x"]',
    )
    ran = chat(*(f"\\set {setting}" for setting in shown), "hello")
    assert notes(ran) == [setting.replace(" ", " is now ", 1) for setting in shown]
    sampling = ran.models[0].asked[0][1]
    assert sampling.logit_bias == ((3, -5.0), (17, 0.25))
    assert sampling.dry_sequence_breakers == ("\n", ":")
    assert (sampling.dry_multiplier, sampling.stop) == (0.123456789, ("[x",))


def test_set_lists_every_setting_that_changes_a_reply(chat):
    listed = [line.split()[0] for line in notes(chat("\\set")) if line][:-1]
    assert listed == setting_names()
    for_programs = {"logprobs", "variant", "ignore_eos", "grammar", "adapter"}
    for_programs |= {"shows_control", "keeps_stop", "prompt_logprobs"}
    assert {name.replace("-", "_") for name in listed} == {
        field.name for field in fields(Sampling)
    } - for_programs


def test_a_saved_chat_goes_on_elsewhere(chat, tmp_path):
    file = tmp_path / "my chat.json"
    ran = chat("\\system Be brief.", "snow", "\\set top_k 5", f"\\save {file}")
    assert notes(ran)[-1] == f"1 turn saved to {file}"
    ran = chat("hello", f"\\load {file}", "history")
    assert ran.out.splitlines()[1] == f"You said: system=Be brief. user=snow assistant={SNOW}"
    assert ran.models[0].asked[-1][1].top_k == 5
    assert notes(ran) == ["1 turn loaded, from a chat with x", "last message: snow"]


def test_loading_keeps_what_a_chat_cannot_set(chat, tmp_path):
    file = tmp_path / "chat.json"
    grammar = ("--grammar", "regex:(yes|no)", "--temperature", "0")
    chat("snow", f"\\save {file}")
    ran = chat(f"\\load {file}", "hello", flags=grammar)
    sampling = ran.models[0].asked[0][1]
    assert sampling.grammar == Grammar("regex", "(yes|no)")
    assert sampling.temperature == Sampling().temperature


def test_a_file_that_cannot_be_loaded_changes_nothing(chat, tmp_path):
    file = tmp_path / "chat.json"
    chat("snow", f"\\save {file}")
    value = json.loads(file.read_text(encoding="utf-8"))
    value["messages"].pop()
    file.write_text(json.dumps({**value, "system": "other"}), encoding="utf-8")
    ran = chat("hello", f"\\load {file}", "history")
    assert contents(ran) == ["hello", HELLO, "history"]
    assert notes(ran) == [
        f"mrs: error: {file} is a damaged chat file (its last message has no reply)"
    ]


def test_thoughts_stay_in_a_pipe_and_in_the_conversation(chat):
    ran = chat("think", "history")
    assert ran.out.startswith("<think>\nIt is a *riddle*.\n</think>\n\nThe answer is `<think>`.\n")
    assert ran.models[0].asked[-1][0][1] == {
        "role": "assistant",
        "content": "The answer is `<think>`.",
        "reasoning": "It is a *riddle*.",
    }


def test_a_full_context_ends_a_pipe_with_advice(chat):
    ran = chat("one two three four five", "six", "never asked", model="small")
    assert ran.code == 2
    assert len(ran.models[0].asked) == 1
    assert ran.err.splitlines()[-1] == (
        "mrs: error: the prompt has 13 tokens and the model's context holds 12: "
        "put \\new before this message, or \\undo for each turn to drop"
    )
    ran = chat("one two three four five", "\\undo", "six", model="small")
    assert ran.code == 0


def test_a_message_that_is_too_long_by_itself(chat):
    ran = chat("hello", "x " * 12, model="small")
    assert (ran.code, ran.out) == (2, f"{HELLO}\n")
    assert ran.err.splitlines()[-1].endswith("context holds 12: shorten the message")


@pytest.fixture
def attended(run_mrs, monkeypatch):
    """A chat on a terminal that knows nothing but lines."""

    def run(*said: str) -> Ran:
        lines = iter([*(f"{line}\n" for line in said), ""])
        monkeypatch.setattr(Terminal, "readline", lambda self: next(lines))
        return run_mrs("-i", "plain", "-m", "small", "-q", stdin=None)

    return run


def test_old_turns_are_dropped_only_with_consent(attended):
    ran = attended("one", "two", "four", "five six", "n", "\\retry", "y")
    assert ran.code == 0
    asked = [[m["content"] for m in messages] for messages, _ in ran.models[0].asked]
    assert asked[2] == ["one", "You said: one", "two", "You said: two", "four"]
    assert asked[3] == ["four", "You said: four", "five six"]
    assert "context holds 12.\nDrop the 2 oldest turns? (y/n) " in ran.err
    assert "the message was not sent: \\edit changes it" in ran.err


def test_a_question_without_an_answer_can_be_asked_again(attended):
    ran = attended("one", "broken", "\\edit two", "\\retry")
    asked = [[m["content"] for m in messages] for messages, _ in ran.models[0].asked]
    assert asked[2:] == [["one", "You said: one", "two"]] * 2


def test_a_reply_that_fills_the_context_says_so(run_mrs, monkeypatch):
    def reply(self, text, messages):
        yield TextDelta("word")
        yield Finished("length", ReplyUsage(11, 1, 0, 0.1, 0.1))

    monkeypatch.setattr(fake_model.FakeModel, "_reply", reply)
    ran = run_mrs("-i", "plain", "-m", "small", stdin="hello\n")
    assert ran.err.splitlines()[-1] == (
        "the context of 12 tokens is full: \\new starts a new session, \\undo removes the last turn"
    )
