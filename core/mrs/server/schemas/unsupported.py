"""Fields of other servers' requests that would change replies and are not supported.

A request that asks for one is refused by its name. Fields that are neither here nor in a schema
change no reply as far as is known: they are ignored, and named in the header `x-ignored-fields`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from mrs.request.sampling import SETTINGS
from mrs.server.http.errors import ApiError


class Refused(NamedTuple):
    """What to do instead of a field, and its values that ask for nothing, besides null.

    A field that matters `only_with` some settings is refused only where one of them acts.
    """

    hint: str
    neutral: tuple[Any, ...] = ()
    only_with: tuple[str, ...] = ()


_SAMPLER = "leave it out; there are top_k, top_p, min_p, typical_p, top_n_sigma and XTC"
_REPETITIONS = "use repetition_penalty, frequency_penalty or the DRY settings"
_TOKENS = "use logit_bias with the ids of tokens"
_FORM = "use grammar, or response_format"
_LOGPROBS = "use logprobs"
_TOOLS = "use tools"
_LEAVE = "leave it out"
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")

UNSUPPORTED: Mapping[str, Refused] = {
    # samplers of llama.cpp, text-generation-webui and koboldcpp
    "mirostat": Refused(_SAMPLER, (0,)),
    "mirostat_mode": Refused(_SAMPLER, (0,)),
    "dynatemp_range": Refused(_SAMPLER, (0,)),
    "dynamic_temperature": Refused(_SAMPLER, (False,)),
    "tfs": Refused(_SAMPLER, (1,)),
    "tfs_z": Refused(_SAMPLER, (1,)),
    "top_a": Refused(_SAMPLER, (0,)),
    "epsilon_cutoff": Refused(_SAMPLER, (0,)),
    "eta_cutoff": Refused(_SAMPLER, (0,)),
    "smoothing_factor": Refused(_SAMPLER, (0,)),
    "adaptive_target": Refused(_SAMPLER, (-1, 0)),
    "min_keep": Refused(_SAMPLER, (0, 1)),
    "samplers": Refused("their order is fixed: leave it out", ([],)),
    "sampler_priority": Refused("their order is fixed: leave it out", ([],)),
    "sampler_order": Refused("their order is fixed: leave it out", ([],)),
    "temperature_last": Refused("the temperature comes first: leave it out", (False,)),
    "repeat_last_n": Refused("penalties look at the whole context: give -1", (-1,), _PENALTIES),
    "repetition_penalty_range": Refused(
        "penalties look at the whole context: give 0", (0,), _PENALTIES
    ),
    "dry_penalty_last_n": Refused(
        "DRY looks at the whole context: give -1", (-1,), ("dry_multiplier",)
    ),
    "encoder_repetition_penalty": Refused(_REPETITIONS, (1,)),
    "no_repeat_ngram_size": Refused(_REPETITIONS, (0,)),
    "penalty_alpha": Refused(_SAMPLER, (0,)),
    "guidance_scale": Refused(_LEAVE, (1,)),
    "negative_prompt": Refused(_LEAVE, ("",)),
    "do_sample": Refused("use temperature 0", (True,)),
    # search
    "use_beam_search": Refused("use n or best_of", (False,)),
    "num_beams": Refused("use n or best_of", (0, 1)),
    "length_penalty": Refused("there is no beam search: leave it out", (1,)),
    "best_of": Refused("use n, or best_of of /v1/completions", (1,)),
    # tokens
    "bad_words": Refused(_TOKENS, ([],)),
    "banned_tokens": Refused(_TOKENS, ([], "")),
    "bad_words_ids": Refused(_TOKENS, ([],)),
    "allowed_token_ids": Refused(_TOKENS),
    "suppress_tokens": Refused(_TOKENS, ([],)),
    "logits_processors": Refused(_TOKENS, ([],)),
    "custom_token_bans": Refused(_TOKENS, ("",)),
    "vllm_xargs": Refused(_LEAVE, ({},)),
    "repetition_detection": Refused(_REPETITIONS),
    # forms
    "format": Refused(_FORM, ("",)),
    "guided_whitespace_pattern": Refused(_FORM),
    "structural_tag": Refused(_FORM),
    "ebnf": Refused(_FORM, ("",)),
    "regex": Refused("use guided_regex", ("",)),
    "grammar_lazy": Refused(_FORM, (False,)),
    "grammar_triggers": Refused(_FORM, ([],)),
    "grammar_string": Refused("use grammar", ("",)),
    "n_indent": Refused(_FORM, (0,)),
    # prompts
    "chat_template": Refused("start the server with --chat-template FILE"),
    "documents": Refused("write them into messages", ([],)),
    "template": Refused("start the server with --chat-template FILE", ("",)),
    "context": Refused("send the whole conversation", ([],)),
    "options": Refused("give its fields themselves, such as temperature", ({},)),
    "parameters": Refused("give its fields themselves, such as temperature", ({},)),
    "mm_processor_kwargs": Refused(_LEAVE, ({},)),
    "prompt_embeds": Refused("send texts or token ids"),
    "image_data": Refused("put images into messages", ([],)),
    "add_special_tokens": Refused("send token ids to /v1/completions", (False,)),
    "echo": Refused("echo is for /v1/completions", (False,)),
    "suffix": Refused("suffix is for /v1/completions", ("",)),
    "return_full_text": Refused("use echo of /v1/completions", (False,)),
    "lora": Refused("use adapter", ([],)),
    # what a reply has
    "functions": Refused(_TOOLS, ([],)),
    "function_call": Refused("use tool_choice", ("none", "auto")),
    "web_search_options": Refused(_TOOLS),
    "modalities": Refused("replies are text: leave it out", ([], ["text"])),
    "audio": Refused("replies are text: leave it out"),
    "details": Refused(_LOGPROBS, (False,)),
    "decoder_input_details": Refused("use logprobs and echo of /v1/completions", (False,)),
    "top_n_tokens": Refused("use top_logprobs", (0,)),
    "n_probs": Refused("use logprobs and top_logprobs", (0,)),
    "watermark": Refused(_LEAVE, (False,)),
    "detokenize": Refused(_LEAVE, (True,)),
    "return_token_ids": Refused(_LEAVE, (False,)),
    "return_tokens": Refused(_LEAVE, (False,)),
    "return_tokens_as_token_ids": Refused(_LEAVE, (False,)),
    "t_max_predict_ms": Refused("use max_tokens", (0, -1)),
}


def refuse_unsupported(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ApiError for a field that is not `known` and would change the reply."""
    for name, value in given.items():
        refused = UNSUPPORTED.get(name)
        if refused is None or name in known or value is None:
            continue
        matters = not refused.only_with or any(_acts(each, given) for each in refused.only_with)
        if matters and not any(_is_same(value, each) for each in refused.neutral):
            raise ApiError(
                400, f"{name} is not supported: {refused.hint}", name, "unsupported_value"
            )


def _acts(name: str, given: Mapping[str, Any]) -> bool:
    return given.get(name) not in (None, SETTINGS[name].off)


def _is_same(value: Any, neutral: Any) -> bool:
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
