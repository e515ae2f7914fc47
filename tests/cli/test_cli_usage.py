"""Wrong usage ends with code 2 and one line that quotes what is wrong and says what to try."""

from __future__ import annotations

import pytest

WRONG = [
    ("-i", "no model is given: add -m ID, such as: mrs -i -m demo"),
    ("--bogus", "no flag --bogus: see mrs --help"),
    ("--isqq q4k plain -m x", "no flag --isqq: did you mean --isq?"),
    ("-m demo plain -m x", "a flag of plain is before it: put -m and its other flags after plain"),
    ("-o moqe plain -m x", "a flag of plain is before it: put -m and its other flags after plain"),
    ("run -m demo hello you", "unexpected argument 'you' after run: put the question in quotes"),
    ("serve demo hello", "unexpected argument 'hello' after run: leave it out"),
    ("serve -m demo hello", "unexpected argument 'hello' after run: leave it out"),
    ("plain", "missing flag '-m' / '--model-id'"),
    ("plain -m", "flag '-m' requires an argument"),
    ("--isq q4k bench plain -m x --isq q4k", "no flag --isq: it is a global flag, put it before"),
    ("plain -m x --isq q4k", "no flag --isq: it is a global flag, put it before plain"),
    ("plain -m x --model_id y", "no flag --model_id: did you mean --model-id?"),
    ("plain -m x --mmproj y", "no flag --mmproj: it is a flag of gguf"),
    ("plian -m x", "no such command 'plian': did you mean 'plan', 'plain'?"),
    ("plain -m x hello you", "unexpected argument 'you' after plain: put the question in"),
    ("plain -m x -P a hello", "--prompt is given 2 times: give one"),
    ("--thinking=maybe plain -m x", "--thinking maybe is not valid: give true or false"),
    ("--thinking maybe plain -m x", "--thinking maybe is not valid: give true or false"),
    ("plain -m x -P a -P b", "--prompt is given 2 times: give one"),
    ("-P a plain -m x -P b", "--prompt is given 2 times: give one"),
    ("bench -i plain -m x", "mrs bench has no flag -i: see mrs bench --help"),
    ("--seed -9223372036854775809 plain -m x", "-9223372036854775809 is out of range"),
    ("--seed 9223372036854775808 plain -m x", "--seed 9223372036854775808 is out of range"),
    ("--max-seqs 0 plain -m x", "--max-seqs 0 is out of range: give a whole number from 1 up"),
    ("--max-seqs 1.5 plain -m x", "--max-seqs 1.5 is not a whole number"),
    ("--paged-attn --no-paged-attn plain -m x", "--no-paged-attn exclude each other: give one"),
    ("--paged-attn bench --no-paged-attn plain -m x", "exclude each other: give one"),
    ("--pa-ctxt-len 0 plain -m x", "--pa-ctxt-len 0 is out of range"),
    ("--pa-gpu-mem 1.5 plain -m x", "--pa-gpu-mem 1.5 is not a whole number"),
    ("--pa-gpu-mem-usage 0 plain -m x", "is out of range: give a number above 0, at most 1"),
    (
        "--pa-blk-size 48 plain -m x",
        "blocks of 48 tokens are not supported (--pa-blk-size): give 8, 16, 32 or 64",
    ),
    (
        "--temperature hot plain -m x",
        "--temperature hot is not a number: give a number from 0 to 100",
    ),
    ("plain -m x --temperature nan", "--temperature nan is out of range"),
    ("plain -m x --temperature 101", "--temperature 101 is out of range"),
    ("plain -m x --top-p -0.1", "--top-p -0.1 is out of range: give a number from 0 to 1"),
    ("plain -m x --top-k -2", "--top-k -2 is out of range"),
    ("plain -m x --min-p 1.5", "--min-p 1.5 is out of range"),
    ("plain -m x --repetition-penalty inf", "--repetition-penalty inf is out of range"),
    ("plain -m x --presence-penalty -3", "--presence-penalty -3 is out of range"),
    ("plain -m x --max-tokens -1", "--max-tokens -1 is out of range"),
    ("plain -m x --max-seq-len 0", "--max-seq-len 0 is out of range"),
    ("plain -m x -d f64", "'f64' is not one of 'auto', 'bf16', 'f16', 'f32'"),
    ("-c t.txt plain -m x", "--chat-template t.txt is not a .jinja or .json file"),
    ("-j t.json plain -m x", "--jinja-explicit t.json is not a .jinja file"),
    ("--token-source vault plain -m x", "--token-source vault is not valid"),
    ("--token-source env: plain -m x", "--token-source env: is not valid"),
    ("-l /no/such/folder/log plain -m x -P a", "--log /no/such/folder/log cannot be written"),
]


@pytest.mark.parametrize(("line", "expected"), WRONG)
def test_wrong_usage(run_mrs, line, expected):
    ran = run_mrs(*line.split(), stdin="hello\n")
    assert ran.code == 2
    assert ran.err.startswith("mrs: error: ")
    assert expected in ran.err
    assert ran.err.count("\n") == 1
    assert (ran.out, ran.models) == ("", [])


@pytest.mark.parametrize("words", [("-P", ""), ("-P", " "), ("--stop", ""), ("--log", "")])
def test_empty_values(run_mrs, words):
    ran = run_mrs(*words, "plain", "-m", "x")
    assert ran.code == 2
    assert words[0].replace("-P", "--prompt") in ran.err


def test_a_literal_token_is_never_shown(run_mrs):
    ran = run_mrs("--token-source", "litteral:hf_secret", "plain", "-m", "x", "-P", "a")
    assert ran.code == 2
    assert "hf_secret" not in ran.err


def test_nothing_to_answer(run_mrs):
    ran = run_mrs("plain", "-m", "x", stdin=None)
    assert ran.code == 2
    assert "no prompt is given: add -i" in ran.err
    assert ran.models == []


def test_escape_codes_in_an_error_are_dropped(run_mrs):
    ran = run_mrs("plain", "-m", "x", "a", "a\x1b[2Jb\nc")
    assert ran.code == 2
    assert "\x1b" not in ran.err
    assert ran.err.count("\n") == 1


def test_alone_it_shows_help(run_mrs, capsys):
    assert run_mrs().code == 0
    alone = capsys.readouterr().out
    assert run_mrs("--help").code == 0
    assert alone == capsys.readouterr().out
    assert alone.startswith("Usage: mrs ")


def test_help_names_every_selector_flag_and_wraps(run_mrs, capsys):
    for selector, flags in {"plain": ["-m", "-a", "-d", "-t"], "gguf": ["-m", "-f", "-t"]}.items():
        assert run_mrs(selector, "-h", "all").code == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 100
        assert all(f"  {flag}, --" in text for flag in flags)


def test_version(run_mrs, capsys):
    assert run_mrs("--version").code == 0
    assert capsys.readouterr().out.startswith("mrs ")


def test_a_type_of_cache_that_there_is_not(run_mrs):
    ran = run_mrs("--pa-cache-type", "q8", "plain", "-m", "x")
    assert ran.code == 5
    assert ran.err == (
        "mrs: error: a KV cache of type q8 is not supported (--pa-cache-type): "
        "give auto, f16, bf16, f32, f8e4m3, q8_0 or q4_0\n"
    )
