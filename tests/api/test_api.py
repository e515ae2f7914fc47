"""The Python face: requests, responses, streams, errors, threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

import mrs
from mrs import (
    Architecture,
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingArchitecture,
    Runner,
    VisionArchitecture,
    Which,
)
from mrs.architecture.family_registry import families
from mrs.architecture.vision.describe_vision import vision_families
from mrs.engine.loop import TokenStream
from mrs.engine.sequence import TokenOutput
from mrs.errors import MrsError, NotReadable, Unsupported, UsageError
from mrs.request import Media

QUESTION = [{"role": "user", "content": "What is a KV cache?"}]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(which=Which.Plain(model_id="demo"), seed=7, cpu=True)
    yield made
    made.close()


def ask(runner: Runner, **settings: object) -> mrs.ChatCompletionResponse:
    response = runner.send_chat_completion_request(
        ChatCompletionRequest(**{"messages": QUESTION, "max_tokens": 24, **settings})
    )
    assert isinstance(response, mrs.ChatCompletionResponse)
    return response


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, mrs; assert mrs.Which.Plain(model_id='x') and mrs.CompletionRequest;"
        "heavy = {'torch', 'tokenizers', 'jinja2', 'numpy', 'PIL'} & set(sys.modules); "
        "assert not heavy"
    )
    environment = {"PYTHONPATH": str(Path(mrs.__file__).parents[1]), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_every_name_is_there() -> None:
    assert all(getattr(mrs, name) is not None for name in mrs.__all__)
    assert set(mrs.__all__) <= set(dir(mrs))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mrs.Nothing


def test_an_architecture_for_every_family() -> None:
    known = {each.value for enum in (Architecture, EmbeddingArchitecture) for each in enum}
    assert known == set(families())


def test_an_architecture_for_every_family_that_sees() -> None:
    assert {each.value for each in VisionArchitecture} == set(vision_families())


def test_a_chat_is_answered(runner: Runner) -> None:
    response = ask(runner, max_tokens=100)
    assert "keys and values" in response.choices[0].message.content
    assert response.choices[0].message.role == "assistant"
    assert response.choices[0].finish_reason == "stop"
    assert (response.object, response.model) == ("chat.completion", "demo")
    usage = response.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.avg_compl_tok_per_sec > 0
    assert usage.avg_prompt_tok_per_sec > 0
    assert usage.total_time_sec == usage.total_prompt_time_sec + usage.total_completion_time_sec
    decode = runner.plan().speed.decode_at(usage.prompt_tokens + usage.completion_tokens // 2)
    assert usage.planned_compl_tok_per_sec == (decode.low, decode.high)
    two = ask(runner, max_tokens=3, n_choices=2).usage
    assert two.planned_compl_tok_per_sec is None


def test_asking_again_comes_from_the_prefix_cache(runner: Runner) -> None:
    first, again = ask(runner), ask(runner)
    assert again.choices == first.choices
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert first.id != again.id


def test_a_stream_says_the_same(runner: Runner) -> None:
    whole = ask(runner)
    chunks = list(
        runner.send_chat_completion_request(
            ChatCompletionRequest(messages=QUESTION, max_tokens=24, stream=True)
        )
    )
    assert all(isinstance(chunk, mrs.ChatCompletionChunkResponse) for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_can_be_left(runner: Runner) -> None:
    request = ChatCompletionRequest(messages=QUESTION, max_tokens=200, stream=True)
    stream = runner.send_chat_completion_request(request)
    next(stream)
    stream.close()
    assert list(stream) == []
    for chunk in runner.send_chat_completion_request(request):
        assert chunk.choices[0].delta.content
        break
    assert ask(runner).usage.completion_tokens == 24


def test_a_stream_fails_once_its_runner_is_closed() -> None:
    with mrs.Runner(Which.Plain("demo"), cpu=True) as runner:
        stream = runner.send_chat_completion_request(
            ChatCompletionRequest(QUESTION, stream=True, ignore_eos=True)
        )
        next(stream)
    with pytest.raises(MrsError, match="closed before the reply was complete"):
        list(stream)


def test_a_text_is_continued(runner: Runner) -> None:
    request = CompletionRequest(prompt="The capital of France", max_tokens=6, echo_prompt=True)
    response = runner.send_completion_request(request)
    assert isinstance(response, mrs.CompletionResponse)
    assert response.choices[0].text.startswith("The capital of France")
    assert len(response.choices[0].text) > len("The capital of France")
    stream = runner.send_completion_request(
        CompletionRequest(prompt="The capital of France", max_tokens=6, stream=True)
    )
    said = "".join(chunk.choices[0].text for chunk in stream)
    assert "The capital of France" + said == response.choices[0].text
    echo = CompletionRequest("The capital of France", max_tokens=6, stream=True, echo_prompt=True)
    chunks = runner.send_completion_request(echo)
    assert "".join(chunk.choices[0].text for chunk in chunks) == response.choices[0].text


def test_a_string_is_a_prompt_as_it_is(runner: Runner) -> None:
    chat = runner.send_chat_completion_request(
        ChatCompletionRequest(messages="The capital of France", max_tokens=6)
    )
    plain = runner.send_completion_request(
        CompletionRequest(prompt="The capital of France", max_tokens=6)
    )
    assert chat.choices[0].message.content == plain.choices[0].text


def test_parts_of_text_are_joined(runner: Runner) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "a KV cache?"}]
    assert ask(runner, messages=[{"role": "user", "content": parts}]).choices == ask(runner).choices


def test_logprobs_are_those_of_the_tokens(runner: Runner) -> None:
    choice = ask(runner, max_tokens=8, logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    assert len(content) == 8
    said = b"".join(bytes(each.bytes) for each in content).decode()
    assert said == choice.message.content
    for each in content:
        values = [top.logprob for top in each.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
        assert each.logprob <= 0
        # Without a temperature the likeliest token is taken.
        assert (each.token, each.logprob) == (each.top_logprobs[0].token, values[0])
    assert ask(runner).choices[0].logprobs is None
    assert (
        ask(runner, max_tokens=2, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    )


def test_choices_draw_their_own_chances(runner: Runner) -> None:
    settings = {"n_choices": 4, "temperature": 2.0, "max_tokens": 12}
    first = ask(runner, **settings)
    said = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert len(set(said)) > 1
    assert said == [choice.message.content for choice in ask(runner, **settings).choices]
    assert said[0] == ask(runner, temperature=2.0, max_tokens=12).choices[0].message.content


def test_a_bias_forbids_a_token(runner: Runner) -> None:
    text = ask(runner, max_tokens=10).choices[0].message.content
    first = ask(runner, max_tokens=1).choices[0].message.content
    assert text.startswith(first)
    ids = runner._model._text.tokenizer.encode(first, allow_special=False)
    biased = ask(runner, max_tokens=10, logit_bias={ids[0]: -1000.0})
    assert not biased.choices[0].message.content.startswith(first)


def test_a_stop_text_ends_the_reply(runner: Runner) -> None:
    choice = ask(runner, stop_seqs=[" keys"], max_tokens=50).choices[0]
    assert choice.finish_reason == "stop"
    assert "keys" not in choice.message.content


def test_threads_share_a_runner(runner: Runner) -> None:
    topics = ["a KV cache", "a token", "GGUF", "a GPU", "quantization", "attention"]
    asked = [[{"role": "user", "content": f"What is {topic}?"}] for topic in topics]
    alone = [ask(runner, messages=each).choices for each in asked]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda each: ask(runner, messages=each).choices, asked * 2))
    assert together == alone * 2


def test_an_interruption_goes_on_to_the_caller(runner: Runner, monkeypatch) -> None:
    take, taken = TokenStream.__next__, 0

    def interrupted(stream: TokenStream) -> TokenOutput:
        nonlocal taken
        taken += 1
        if taken == 4:
            raise KeyboardInterrupt
        return take(stream)

    before = ask(runner)
    for stream in (False, True):
        taken = 0
        with monkeypatch.context() as patch:
            patch.setattr(TokenStream, "__next__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(
                    runner.send_chat_completion_request(
                        ChatCompletionRequest(messages=QUESTION, max_tokens=24, stream=stream)
                    )
                )
    assert ask(runner).choices == before.choices


WRONG = [
    {"max_tokens": -1},
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"top_p": 1.5},
    {"min_p": -0.1},
    {"repetition_penalty": 0.0},
    {"n_choices": 0},
    {"logit_bias": {10**9: 1.0}},
    {"messages": []},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": 5}]},
]


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_what_makes_no_sense_is_refused(runner: Runner, settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ask(runner, **settings)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {"url": 5}},
    ],
)
def test_an_image_needs_a_url(runner: Runner, part: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="an image lacks its URL"):
        ask(runner, messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize("part", [{"type": "file"}, {"text": "x"}, "x", None])
def test_other_parts_are_refused(runner: Runner, part: object) -> None:
    with pytest.raises(Unsupported, match="neither text nor an image, a video or audio"):
        ask(runner, messages=[{"role": "user", "content": [part]}])


def test_images_need_a_vision_model(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    parts = [{"type": "image_url", "image_url": {"url": str(path)}}]
    with pytest.raises(NotReadable, match=r"cat\.png cannot be read"):
        ask(runner, messages=[{"role": "user", "content": parts}])
    Image.new("RGB", (4, 4)).save(path)
    with pytest.raises(UsageError, match="vision-plain"):
        ask(runner, messages=[{"role": "user", "content": parts}])


def test_parts_become_a_content_with_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    parts = [
        {"type": "text", "text": "Is \ufffc"},
        {"type": "image_url", "image_url": {"url": str(path), "detail": "high"}},
        {"type": "text", "text": " older than "},
        {"type": "image_url", "image_url": "data:;base64,AA=="},
        {"type": "text", "text": "?"},
    ]
    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": parts}, {"role": "user", "content": parts[:1]}]
    )
    assert request.conversation() == [
        {
            "role": "user",
            "content": "Is \ufffc older than \ufffc?",
            "images": [
                Media.of(str(path), b"one", "image"),
                Media.of("data:;base64,AA==", b"\0", "image"),
            ],
        },
        {"role": "user", "content": "Is "},
    ]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotReadable):
        Runner(which=Which.Plain(model_id=str(tmp_path)))
    with pytest.raises(MrsError):
        Runner(which=Which.GGUF(quantized_model_id=str(tmp_path), quantized_filename="x.gguf"))


def test_a_folder_keeps_what_was_asked_for_the_next_runner(tmp_path: Path) -> None:
    def asked() -> mrs.ChatCompletionResponse:
        made = Runner(
            which=Which.Plain(model_id="demo"),
            prefix_cache_dir=str(tmp_path),
            prefix_cache_dir_size=10_000_000,
            cpu=True,
        )
        response = ask(made, messages=[{"role": "user", "content": "What is a KV cache? " * 9}])
        made.close()
        return response

    first, second = asked(), asked()
    assert first.choices == second.choices
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == second.usage.prompt_tokens - 1
    with pytest.raises(UsageError, match="the prefix cache is off"):
        Runner(which=Which.Plain(model_id="demo"), prefix_cache_dir="x", prefix_cache_n=0)


@pytest.mark.parametrize(
    ("wanted", "format_name"), [("4bit", "Q4_K"), ("q4k", "Q4_K"), ("Q5_0", "Q5_0"), (8, "Q8_0")]
)
def test_quantization_is_named_in_many_ways(wanted: str | int, format_name: str) -> None:
    made = Runner(which=Which.Plain(model_id="demo"), in_situ_quant=wanted, cpu=True)
    assert made.plan().isq == format_name
    made.close()


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"device_map": ["0:3", "1:2"]}, (0, 0, 0, 1, 1)),
        ({"device_map": "0:3;1:2"}, (0, 0, 0, 1, 1)),
        ({"num_device_layers": ["0:1", "1:4"]}, (0, 1, 1, 1, 1)),
        ({"num_device_layers": "0:5"}, (0,) * 5),
        ({"num_device_layers": 5}, (0,) * 5),
    ],
)
def test_layers_go_where_they_are_sent(
    settings: dict[str, object], layers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    made = Runner(which=Which.Plain(model_id="demo"), **settings)
    assert made.plan().layer_devices == layers
    assert ask(made, max_tokens=3).usage.completion_tokens == 3
    made.close()


@pytest.mark.parametrize("name", ["chat_template", "jinja_explicit"])
def test_another_chat_template_is_used(tmp_path: Path, name: str) -> None:
    template = tmp_path / "short.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    made = Runner(which=Which.Plain(model_id="demo"), cpu=True, **{name: str(template)})
    text = "What is a KV cache?"
    usage = ask(made, max_tokens=1).usage
    assert usage.prompt_tokens == len(made._model._text.encode_raw(text))
    made.close()


def test_settings_reach_the_plan() -> None:
    made = Runner(
        which=Which.Plain(model_id="demo", arch=Architecture.Llama, dtype="f32"),
        in_situ_quant="8bit",
        max_seq_len=128,
        max_batch_size=3,
        prefix_cache_n=0,
        no_kv_cache=True,
        cpu=True,
    )
    plan = made.plan()
    assert (plan.workload.context_tokens, plan.workload.batch, plan.isq) == (128, 3, "Q8_0")
    assert ask(made, max_tokens=3).usage.completion_tokens == 3
    assert ask(made, max_tokens=3).usage.cached_tokens == 0


def test_a_pool_of_blocks_bounds_the_cache(runner: Runner) -> None:
    settings = {"pa_ctxt_len": 190, "pa_blk_size": 16, "pa_cache_type": "f32"}
    with Runner(Which.Plain("demo", dtype="f32"), cpu=True, **settings) as made:
        size = made.plan().workload.cache
        assert (size.pool_blocks, size.block_tokens, size.total_tokens) == (12, 16, 192)
        assert made.max_sequence_length() == 192
        space = made._model.engine._engine.caches.space
        held = sum(layer.nbytes for pool in space.pools for layer in pool.layers)
        assert held == sum(made.plan().kv_bytes)
        first = ask(made, max_tokens=20, n_choices=8)
        assert first.usage.completion_tokens <= 160
        assert held == sum(layer.nbytes for pool in space.pools for layer in pool.layers)
    with Runner(Which.Plain("demo"), cpu=True, no_paged_attn=True) as made:
        assert not made.plan().workload.cache.is_pool


def test_a_prompt_is_scored_without_a_reply(runner: Runner) -> None:
    text = "The KV cache holds keys"
    ids = runner.tokenize_text(text, add_special_tokens=True)
    found = []
    for prompt in (text, ids):
        request = CompletionRequest(prompt, max_tokens=0, prompt_logprobs=2)
        (choice,) = runner.send_completion_request(request).choices
        assert (choice.text, choice.finish_reason) == ("", "length")
        assert choice.prompt_logprobs is not None
        assert len(choice.prompt_logprobs) == len(ids) - 1
        assert all(len(each.top_logprobs) == 2 for each in choice.prompt_logprobs)
        found.append([each.logprob for each in choice.prompt_logprobs])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert "".join(each.token for each in choice.prompt_logprobs) in text


def test_the_rendered_prompt_of_a_chat_is_scored(runner: Runner) -> None:
    response = ask(runner, prompt_logprobs=0, max_tokens=1)
    found = response.choices[0].prompt_logprobs
    assert found is not None
    assert len(found) == response.usage.prompt_tokens - 1
    assert ask(runner, max_tokens=1).choices[0].prompt_logprobs is None
    with pytest.raises(UsageError, match="a stream has no prompt_logprobs"):
        ChatCompletionRequest(QUESTION, prompt_logprobs=0, stream=True)
