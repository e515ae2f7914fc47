"""Settings of replies, lists and stored responses: as many and as large as they can be."""

from __future__ import annotations

import random
from typing import Any

from support.hostile.request import LAST_RESPONSE, MB, HostileRequest, Maker, asking, chat

_TURN = [{"role": "user", "content": "Hi"}]


def _biases(chance: random.Random) -> HostileRequest:
    count = chance.choice([10, 10_000, MB])
    value = chance.choice([1, -100, 100, 1e308, 0])
    return chat(f"fields: {count:,} biases", logit_bias={str(i): value for i in range(count)})


def _stops(chance: random.Random) -> HostileRequest:
    stop = chance.choice(
        [["a"] * MB, ["x" * MB], [f"{i}" for i in range(64)], [""], "\0", ["é" * 1000] * 64]
    )
    return chat("fields: stops", stop=stop, max_tokens=30)


def _stop_ids(chance: random.Random) -> HostileRequest:
    ids = chance.choice([list(range(MB)), [-1], [10**30], list(range(1000)), [0] * 64])
    return chat("fields: stop ids", stop_token_ids=ids)


def _replies(chance: random.Random) -> HostileRequest:
    n = chance.choice([2, 60, 128, 129, 10**9])
    return chat(f"fields: n {n}", n=n, logprobs=True, top_logprobs=20)


def _best_of(chance: random.Random) -> HostileRequest:
    best, prompts = chance.choice([(128, 1), (16, 64), (4, 2048), (1, 100_000)])
    return asking(
        f"fields: best of {best}, {prompts} prompts",
        "/v1/completions",
        {"prompt": ["Hi"] * prompts, "best_of": best, "max_tokens": 4, "logprobs": 20},
    )


def _scored(chance: random.Random) -> HostileRequest:
    """Twenty candidates for each token of a prompt that fills the context."""
    length = chance.choice([100, 1900, 2047])
    return asking(
        f"fields: {length} tokens scored",
        "/v1/completions",
        {
            "prompt": [5] * length,
            "prompt_logprobs": 20,
            "echo": True,
            "logprobs": 20,
            "max_tokens": 1,
        },
    )


def _ids(chance: random.Random) -> HostileRequest:
    ids: Any = chance.choice([
        [1] * MB, [2**31 - 1], [-1], [[1] * 10_000] * 100, [[]], [1, "a"], [[1], "a"], [10**30],
        [[1]] * 100_000, [100_000],
    ])  # fmt: skip
    path, field = chance.choice([
        ("/v1/completions", "prompt"), ("/v1/embeddings", "input"), ("/detokenize", "tokens"),
    ])  # fmt: skip
    return asking(f"fields: token ids, {path}", path, {field: ids, "max_tokens": 1})


def _long_reply(chance: random.Random) -> HostileRequest:
    most = chance.choice([300, 10**6, 10**18])
    return chat(f"fields: max_tokens {most}", max_tokens=most, stream=chance.random() < 0.5)


def _settings(chance: random.Random) -> HostileRequest:
    names = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
             "repetition_penalty", "dry_multiplier", "seed", "min_tokens", "top_n_sigma",
             "typical_p",
             "xtc_threshold", "dry_allowed_length", "mirostat", "reasoning_budget")  # fmt: skip
    values = (0, -1, 1e-300, 1e300, 2**31, 2**63 - 1, 0.999999, 1, 2, 100)
    chosen = {name: chance.choice(values) for name in chance.sample(names, 4)}
    return chat(f"fields: {', '.join(chosen)}", **chosen)


def _breakers(chance: random.Random) -> HostileRequest:
    breakers = chance.choice([["a"] * MB, ["x" * MB], ["\n"] * 64, [""]])
    return chat("fields: sequence breakers", dry_multiplier=1, dry_sequence_breakers=breakers)


def _variables(chance: random.Random) -> HostileRequest:
    deep: Any = 1
    for _ in range(chance.choice([10, 400])):
        deep = {"a": [deep]}
    variables = chance.choice([
        {"x": deep}, {"x": "a" * 5 * MB}, {f"v{i}": i for i in range(100_000)}, {"messages": []},
        {"__class__": 1}, {"": 1}, {"x": [1] * MB}, {"raise_exception": 1}, {"x y": 1},
    ])  # fmt: skip
    return chat("fields: variables of the template", chat_template_kwargs=variables)


def _many_messages(chance: random.Random) -> HostileRequest:
    count = chance.choice([1000, 16_000, 200_000])
    roles = chance.choice(
        [["user"], ["system"], ["assistant"], ["user", "assistant"], ["developer"]]
    )
    messages = [{"role": roles[i % len(roles)], "content": "a"} for i in range(count)]
    is_cut = chance.random() < 0.5
    return chat(f"fields: {count:,} messages", messages=messages, truncate_sequence=is_cut)


def _many_parts(chance: random.Random) -> HostileRequest:
    count = chance.choice([1000, 500_000])
    parts = [{"type": chance.choice(["text", "refusal"]), "text": "a", "refusal": "b"}] * count
    path = chance.choice(["/v1/chat/completions", "/v1/messages", "/tokenize"])
    fields = {"messages": [{"role": "user", "content": parts}]}
    return asking(f"fields: {count:,} parts, {path}", path, {**fields, "max_tokens": 4})


def _blocks(chance: random.Random) -> HostileRequest:
    block = chance.choice([
        {"type": "thinking", "thinking": "a" * MB}, {"type": "redacted_thinking", "data": "a" * MB},
        {"type": "tool_use", "id": "", "name": "", "input": {}}, {"type": "x"}, {"type": "text"},
        {"type": "tool_result", "tool_use_id": "absent", "content": []}, {"type": "document"},
        {"type": "image", "source": {"type": "base64", "media_type": "x", "data": "*"}}, None, [],
        {},
    ])  # fmt: skip
    messages = [{"role": chance.choice(["user", "assistant"]), "content": [block] * 20}, *_TURN]
    return asking(
        "fields: blocks of Anthropic",
        chance.choice(["/v1/messages", "/v1/messages/count_tokens"]),
        {"messages": messages, "max_tokens": 4, "thinking": chance.choice([
            None, {"type": "enabled", "budget_tokens": 10**9}, {"type": "x"}, {"type": "disabled"},
        ])},
    )  # fmt: skip


def _lists(chance: random.Random) -> HostileRequest:
    count = chance.choice([64, 2048, 200_000])
    path, fields = chance.choice([
        ("/v1/embeddings", {"input": ["a"] * count}),
        ("/v1/embeddings", {"input": "a", "dimensions": 10**9}),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * count}),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "a", "x": 1}] * count,
        "top_n": 10**9}),
        ("/v1/score", {"text_1": ["a"] * count, "text_2": ["a"] * (count - 1)}),
        ("/v1/score", {"text_1": "a", "text_2": ["a"] * count}),
    ])  # fmt: skip
    return asking(f"fields: list of {count:,}, {path}", path, fields)


def _stored(chance: random.Random) -> HostileRequest:
    """A response that is stored with what came with it."""
    more: dict[str, Any] = chance.choice([
        {}, {"metadata": {"a": "b" * 5 * MB}}, {"metadata": {str(i): "" for i in range(100_000)}},
        {"instructions": "a" * 1000}, {"tools": [{"type": "x", "y": "z" * MB}]},
        {"include": ["x"] * MB},
        {"prompt_cache_key": "a" * MB}, {"user": "a" * MB}, {"reasoning": {"effort": "x"}},
        {"metadata": {"a": [[[[]]]] * 100_000}}, {"safety_identifier": "x" * MB},
    ])  # fmt: skip
    return asking(
        "fields: stored", "/v1/responses", {"input": "Hi", "max_output_tokens": 2, **more}
    )


def _continued(chance: random.Random) -> HostileRequest:
    """Goes on from the response before, so that chains become long."""
    before = chance.choice(
        [LAST_RESPONSE, LAST_RESPONSE, LAST_RESPONSE, "resp_x", "", "a" * MB, "\0"]
    )
    fields = {"input": "word " * 50, "previous_response_id": before, "max_output_tokens": 2}
    return asking("fields: continued", "/v1/responses", {**fields, "truncation": "auto"})


def _items(chance: random.Random) -> HostileRequest:
    item: Any = chance.choice([
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a" * MB}]}, {}, None,
        [],
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "["},
        {"type": "function_call_output", "call_id": "absent", "output": "a"},
        {"type": "item_reference", "id": LAST_RESPONSE}, {"type": "x"}, {"role": "user",
        "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "x"}]},
    ])  # fmt: skip
    items = [item] * chance.choice([1, 1000, 100_000])
    if len(items) > 1000 and "summary" in str(item)[:60]:
        items = items[:5]
    path = chance.choice(["/v1/responses", "/v1/responses/input_tokens"])
    return asking(f"fields: {len(items):,} items, {path}", path, {"input": items[:100_000]})


MAKERS: tuple[Maker, ...] = (
    _biases, _stops, _stop_ids, _replies, _best_of, _scored, _ids, _long_reply, _settings,
    _settings,
    _breakers, _variables, _many_messages, _many_parts, _blocks, _lists, _lists, _stored,
    _continued,
    _continued, _items,
)  # fmt: skip
