"""Whatever a field of the Python face cannot be is refused by name, with what is wanted."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrs import (
    Architecture,
    ChatCompletionRequest,
    CompletionRequest,
    ModelDType,
    MultimodalArchitecture,
    Runner,
    VisionArchitecture,
    Which,
)
from mrs.api.which import model_source
from mrs.errors import MrsError, Unsupported, UsageError

QUESTION = [{"role": "user", "content": "What is a KV cache?"}]
NAN = math.nan


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Which.Plain("demo"), cpu=True) as made:
        yield made


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"messages": ["hi"]}, r"messages is \['hi'\]: give a string, or a list of"),
        ({"messages": {"role": "user", "content": "x"}}, "messages is"),
        ({"messages": None}, "messages is None"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5: give a whole number from 0 to 2147483647"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": "5"}, "max_tokens is '5'"),
        ({"n_choices": None}, "n_choices is None"),
        ({"temperature": NAN}, "temperature is nan: give a number from 0 to 100"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": 10**400}, "temperature is"),
        ({"max_tokens": -(10**5000)}, "max_tokens is a value of type int: give a whole number"),
        ({"top_p": 1.5}, "top_p is 1.5: give a number from 0 to 1"),
        ({"repetition_penalty": 0}, "give a number from 0.001 to 1000"),
        ({"logit_bias": {5: NAN}}, "logit_bias is {5: nan}: give token ids, each with a"),
        ({"logit_bias": {-5: 1.0}}, "logit_bias"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": [5, 1.0]}, "logit_bias"),
        ({"stop_seqs": [1]}, r"stop_seqs is \[1\]: give a text, or several"),
        ({"stream": "yes"}, "stream is 'yes': give True or False"),
        ({"reasoning_effort": "huge"}, "reasoning_effort is 'huge': give none, off, minimal"),
        ({"reasoning_effort": "high", "enable_thinking": False}, "leave one of them out"),
        (
            {"reasoning_budget": -2},
            "reasoning_budget is -2: give a whole number from -1 to 2147483647",
        ),
        ({"reasoning_effort": "off", "enable_thinking": True}, "leave one of them out"),
        ({"model": 5}, "model is 5: give a string"),
    ],
)
def test_a_chat_request(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ChatCompletionRequest(**{"messages": QUESTION, **settings})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "robot", "content": "x"}, "role of a message is 'robot': give system, developer"),
        ({"role": ["user"], "content": "x"}, "role of a message"),
        ({"role": "user", "content": None}, "a message of the user has no content"),
        ({"role": "user", "content": [{"type": "text"}]}, "lacks its text"),
        ({"role": "user", "content": "x", "weight": 1}, "the key 'weight' of a message"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "a tool call of a message is not"),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls of a message is not a list"),
        ({"role": "assistant", "tool_calls": []}, "a message of the assistant has no content"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "no earlier message has the tool"),
        ({"content": "x"}, "lacks its role"),
    ],
)
def test_a_message(message: dict[str, Any], words: str) -> None:
    with pytest.raises(MrsError, match=words) as error:
        ChatCompletionRequest([message]).conversation()
    assert isinstance(error.value, (UsageError, Unsupported))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"which": "demo"}, r"which is 'demo': give Which.Plain\(model_id="),
        ({"which": Which}, "which is"),
        ({"max_seqs": 0}, "max_seqs is 0: give a whole number from 1 up"),
        ({"prefix_cache_n": -1}, "prefix_cache_n is -1: give a whole number from 0 up"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_seq_len": 1.5}, "max_seq_len"),
        (
            {"seed": 2**63},
            "seed is 9223372036854775808: give a whole number from -9223372036854775808",
        ),
        ({"workers": -1}, "workers is -1: give a whole number from 0 up"),
        (
            {"workers": 1, "tensor_parallel_size": 3},
            "2 processes, this one included, are not groups of 3",
        ),
        ({"cpu": 1}, "cpu is 1: give True or False"),
        ({"in_situ_quant": ["q4k"]}, "in_situ_quant"),
        ({"device_map": {"0": 5}}, "device_map"),
        ({"device_map": "0:5", "num_device_layers": "0:5"}, "leave one of them out"),
        ({"on_progress": 5}, "on_progress is 5: give a function"),
    ],
)
def test_a_runner(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runner(**{"which": Which.Plain("demo"), **settings})


@pytest.mark.parametrize("which", [Which.Plain, Which.MultimodalPlain, Which.GGUF])
def test_a_model(which: Any) -> None:
    with pytest.raises(UsageError, match="dtype is 'F32': give auto, bf16, f16, f32"):
        which("demo", dtype="F32")
    with pytest.raises(UsageError, match="give a name or a path"):
        which("")
    assert which("demo", dtype="f32").dtype == ModelDType.F32.value
    source = model_source(which(Path("demo"), tokenizer_json=Path("x")), "none")
    assert (source.model_id, source.tokenizer_json) == ("demo", "x")
    with pytest.raises(Unsupported, match="topology is not supported: leave it out"):
        which("demo", topology="x")


def test_an_architecture_is_of_the_kind_that_is_loaded() -> None:
    with pytest.raises(UsageError, match="one of Architecture"):
        Which.Plain("demo", arch="llama")
    with pytest.raises(UsageError, match="one of VisionArchitecture"):
        Which.MultimodalPlain("demo", arch=Architecture.Llama, max_edge=5)
    with pytest.raises(UsageError, match="name its file in mmproj_filename"):
        Which.GGUF("demo", max_edge=5)
    with pytest.raises(UsageError, match="max_num_images"):
        Which.VisionPlain("demo", max_num_images=0)


@pytest.mark.parametrize("name", ["session_id", "shell_skills"])
def test_what_is_not_supported_says_so(name: str) -> None:
    ChatCompletionRequest(QUESTION, **{name: None})
    with pytest.raises(Unsupported, match=f"{name} is not supported: leave it out"):
        ChatCompletionRequest(QUESTION, **{name: "x"})


def test_what_a_runner_does_not_support_says_so() -> None:
    with pytest.raises(Unsupported, match="enable_search is not supported"):
        Runner(Which.Plain("demo"), enable_search=True)


def test_numbers_of_other_libraries_are_numbers() -> None:
    request = ChatCompletionRequest(
        QUESTION, max_tokens=np.int64(3), temperature=np.float32(0.5), top_k=np.int32(2)
    )
    assert request.samplings({})[0].max_tokens == 3


#: What the peer's stubs (0.9.5) say, as far as an argument may come by place.
PEER_CHAT = (
    "messages model logprobs n_choices logit_bias top_logprobs max_tokens presence_penalty"
    " frequency_penalty repetition_penalty stop_seqs temperature top_p top_k stream grammar"
    " grammar_type min_p tool_schemas tool_choice dry_multiplier dry_base dry_allowed_length"
    " dry_sequence_breakers web_search_options enable_thinking truncate_sequence reasoning_effort"
    " max_tool_rounds tool_dispatch_url enable_code_execution enable_shell shell_skills"
    " agent_permission agent_approval_callback code_execution_permission session_id files"
    " input_files ignore_eos"
)
PEER_COMPLETION = (
    "prompt model best_of echo_prompt presence_penalty frequency_penalty repetition_penalty"
    " logit_bias max_tokens n_choices stop_seqs temperature top_p suffix top_k grammar grammar_type"
    " min_p tool_schemas tool_choice dry_multiplier dry_base dry_allowed_length"
    " dry_sequence_breakers truncate_sequence ignore_eos"
)
PEER_RUNNER = (
    "which max_seqs no_kv_cache prefix_cache_n token_source mtp_model mtp_n_predict chat_template"
    " jinja_explicit num_device_layers in_situ_quant anymoe_config memory_goal pa_blk_size"
    " pa_cache_type no_paged_attn paged_attn seed enable_search search_embedding_model"
    " search_callback tool_callbacks mcp_client_config code_execution_config shell_config"
)
PEER_PLAIN = (
    "model_id arch tokenizer_json topology organization write_uqff from_uqff dtype imatrix"
    " calibration_file hf_cache_path matformer_config_path matformer_slice_name"
)
PEER_MULTIMODAL = (
    "model_id arch tokenizer_json topology write_uqff from_uqff dtype max_edge calibration_file"
    " imatrix hf_cache_path matformer_config_path matformer_slice_name organization"
    " encoder_cache_memory_bytes"
)
PEER_GGUF = "quantized_model_id quantized_filename tok_model_id topology dtype"


@pytest.mark.parametrize(
    ("ours", "peers"),
    [
        (ChatCompletionRequest, PEER_CHAT),
        (CompletionRequest, PEER_COMPLETION),
        (Runner, PEER_RUNNER),
        (Which.Plain, PEER_PLAIN),
        (Which.MultimodalPlain, PEER_MULTIMODAL),
        (Which.GGUF, PEER_GGUF),
        (Runner.tokenize_text, "self text add_special_tokens enable_thinking model_id"),
        (Runner.detokenize_text, "self tokens skip_special_tokens model_id"),
        (Runner.max_sequence_length, "self model_id"),
        (Runner.send_chat_completion_request, "self request model_id"),
        (Runner.send_completion_request, "self request model_id"),
    ],
)
def test_arguments_come_by_place_as_the_peer_has_them(ours: Any, peers: str) -> None:
    parameters = inspect.signature(ours).parameters.values()
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_place == peers.split()


def test_names_that_mean_the_same() -> None:
    assert MultimodalArchitecture is VisionArchitecture
    assert Which.MultimodalPlain is Which.VisionPlain
    assert Architecture.DeepseekV2 is Architecture.DeepSeekV2
    assert [each.value for each in ModelDType] == ["auto", "bf16", "f16", "f32"]


def test_a_runner_is_closed_once_and_for_all() -> None:
    with Runner(Which.Plain("demo", dtype=ModelDType.F32), 4, cpu=True) as made:
        assert made.plan().dense.name == "F32"
        assert made.is_model_loaded("demo")
    made.close()
    assert not made.is_model_loaded("demo")
    for request in (ChatCompletionRequest(QUESTION), ChatCompletionRequest("a text")):
        with pytest.raises(UsageError, match="the model is closed"):
            made.send_chat_completion_request(request)
    with pytest.raises(UsageError, match="the model is closed"):
        made.send_completion_request(CompletionRequest("a text"))


def test_a_runner_closes_when_its_block_fails() -> None:
    with pytest.raises(KeyError), Runner(Which.Plain("demo"), cpu=True) as made:
        raise KeyError
    with pytest.raises(UsageError, match="closed"):
        made.send_completion_request(CompletionRequest("a text"))


def test_a_request_is_of_its_kind_and_for_this_model(runner: Runner) -> None:
    with pytest.raises(UsageError, match="request is 'x': give a ChatCompletionRequest"):
        runner.send_chat_completion_request("x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="model_id is 'other': give default or demo"):
        runner.send_completion_request(CompletionRequest("x"), "other")
    with pytest.raises(UsageError, match="model_id is 'other'"):
        runner.send_chat_completion_request_to_model(ChatCompletionRequest(QUESTION), "other")
    assert runner.list_models() == [runner.get_default_model_id()] == ["demo"]
    assert not runner.is_model_loaded("other")
    request = CompletionRequest("x", "default", 1, True, max_tokens=1)
    assert runner.send_completion_request(request, "demo").choices[0].text.startswith("x")


def test_text_to_tokens_and_back(runner: Runner) -> None:
    text = "<|im_start|>user\nWhat is a KV cache?<|im_end|>\n"
    ids = runner.tokenize_text(text, False, None)
    assert runner.detokenize_text(ids, False) == text
    assert runner.detokenize_text(ids, True) == "user\nWhat is a KV cache?\n"
    usage = runner.send_completion_request(CompletionRequest(text, max_tokens=1)).usage
    assert usage.prompt_tokens == len(runner.tokenize_text(text, add_special_tokens=True))
    assert runner.max_sequence_length() == runner.plan().model.context_tokens
    with pytest.raises(UsageError, match=r"tokens is \[-1\]: give a list of token ids"):
        runner.detokenize_text([-1], True)
    with pytest.raises(UsageError, match="text is 5"):
        runner.tokenize_text(5, True)  # type: ignore[arg-type]


def test_end_tokens_can_be_ignored(runner: Runner) -> None:
    said = runner.send_chat_completion_request(ChatCompletionRequest(QUESTION, max_tokens=120))
    more = runner.send_chat_completion_request(
        ChatCompletionRequest(QUESTION, max_tokens=120, ignore_eos=True)
    )
    first, second = said.choices[0], more.choices[0]
    assert (first.finish_reason, second.finish_reason) == ("stop", "length")
    assert second.message.content.startswith(first.message.content)
    assert more.usage.completion_tokens == 120 > said.usage.completion_tokens


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pa_blk_size": 48}, "pa_blk_size is 48: give 8, 16, 32 or 64"),
        (
            {"pa_cache_type": "q8"},
            "pa_cache_type is 'q8': give auto, f16, bf16, f32, f8e4m3, q8_0 or q4_0",
        ),
        ({"pa_ctxt_len": 0}, "pa_ctxt_len is 0: give a whole number from 1 up"),
        ({"pa_gpu_mem": 0.5}, "pa_gpu_mem is 0.5: give a whole number from 1 up"),
        ({"pa_gpu_mem_usage": 90}, "pa_gpu_mem_usage is 90: give a number above 0, at most 1"),
        ({"paged_attn": True, "no_paged_attn": True}, "paged_attn and no_paged_attn are both True"),
    ],
)
def test_pools_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runner(Which.Plain("demo"), cpu=True, **settings)


@pytest.mark.parametrize("field", ["imatrix", "calibration_file"])
def test_a_file_that_weighs_columns_must_exist(field: str) -> None:
    which = Which.Plain("demo", **{field: "no-such-file"})
    with pytest.raises(MrsError, match="cannot read no-such-file"):
        Runner(which, in_situ_quant="q4k", cpu=True)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "text", "text": "x", "cache_control": {}}, "the key 'cache_control' of a part"),
        ({"type": "image_url", "image_url": {"url": "x", "detail": "low"}}, "detail of an image"),
        ({"type": "video_url", "video_url": {"url": "x", "fps": 1}}, "the key 'fps' of a video"),
        ({"type": "file", "file": {}}, "neither text nor an image, a video or audio"),
    ],
)
def test_a_part_with_more_than_its_fields(part: dict[str, Any], words: str) -> None:
    with pytest.raises(MrsError, match=words):
        ChatCompletionRequest([{"role": "user", "content": [part]}]).conversation()
