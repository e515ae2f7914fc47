"""A loaded model, which answers conversations and continues texts until it is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mrs.errors import ContextFull, Unsupported, UsageError
from mrs.events import DeviceMemoryUsage
from mrs.plan.learn_speed import learn_speed
from mrs.plan.plan import Plan
from mrs.plan.speed.learnt import Pace
from mrs.request import Message, RunRequest, Sampling
from mrs.text.shorten import max_prompt_tokens, newest_tokens, newest_turns
from mrs.thinking_settings import ThinkingSettings

if TYPE_CHECKING:
    from mrs.distributed.cluster import Cluster
    from mrs.embedder import Embedder, Vector
    from mrs.engine.image_input import ImageInput
    from mrs.engine.loop import EngineLoop, Outbox
    from mrs.engine.prompt import Prompt
    from mrs.engine.reply import Reply
    from mrs.engine.reply_events import ReplyEvents
    from mrs.grammar.compiler import GrammarCompiler
    from mrs.media.image_processors import Prepared
    from mrs.media.media_loader import MediaLoader, PreparedMedia
    from mrs.ranker import Ranked, RankingPrompts
    from mrs.text.text_limit import TextLimit
    from mrs.text.text_processor import PromptEnding, TextProcessor
    from mrs.text.tokenizer import Tokenizer
    from mrs.tools.tool_caller import ToolCaller
    from mrs.tools.tool_request import ToolRequest


class LoadedModel:
    """A model that is ready to generate; its methods may be called from several threads.

    A reply starts at once. A thread of the model's engine computes it together with all other
    replies. A KeyboardInterrupt while waiting ends a reply with `Finished("cancelled", …)`.
    """

    def __init__(
        self,
        request: RunRequest,
        plan: Plan,
        text: TextProcessor,
        engine: EngineLoop,
        media_loader: MediaLoader | None = None,
        suggested_sampling: Mapping[str, float] | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.plan = plan
        self.summary = plan.summary if cluster is None else f"{plan.summary}: {cluster.summary}"
        #: The workers that compute some of the layers, if there are any.
        self.cluster = cluster
        self.has_chat_template = text.template is not None
        self.context_tokens = engine.context_tokens
        #: Sampling settings that the model's files suggest, by name.
        self.suggested_sampling = suggested_sampling or {}
        self.adapters = request.adapters
        self._text = text
        self._thinking = ThinkingSettings(text, request)
        self._media_loader = media_loader
        self._engine: EngineLoop | None = engine
        #: How the model makes vectors of texts; None for a model that makes replies.
        self.readout = engine.readout
        self.pace = Pace()

    @property
    def engine(self) -> EngineLoop:
        """The engine that generates tokens. Raises UsageError after `close`."""
        if self._engine is None:
            raise UsageError(
                "the model is closed", where=self.plan.model.model_id, hint="load it again"
            )
        return self._engine

    @property
    def thinks(self) -> bool:
        """Whether replies may have thoughts that can be told from answers."""
        return self._text.thinks

    def check_variables(self, variables: Mapping[str, Any]) -> None:
        """Raise UsageError for variables that the chat template does not read."""
        self._thinking.check_variables(variables)

    def check_thinking(self, thinking: bool | None) -> None:
        """Raise UsageError if thoughts are asked for, and the model has none."""
        self._thinking.check(thinking)

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    @property
    def tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        thinking: bool | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
        tools: ToolRequest | None = None,
    ) -> Reply:
        """Answer the last message of a conversation; `thinking` overrides the request's setting.

        The reply may or must call some of `tools`, in the format of the model's template.
        With `truncate`, a conversation that exceeds the context loses its oldest turns; if the
        newest turn alone exceeds it, the prompt loses its oldest tokens. A reply that is not
        complete after `timeout_s` fails. Raises UsageError for images without vision support.
        """
        prompt = self.chat_prompt(
            messages, sampling, thinking=thinking, truncate=truncate, tools=tools
        )
        prompt = self.with_form(prompt, sampling, thinking=thinking, tools=tools)
        return self._stream(prompt, sampling, timeout_s)

    def stream_completion(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Continue a text, or token ids.

        With `truncate`, a text that exceeds the context loses its oldest tokens. A reply that is
        not complete after `timeout_s` fails.
        """
        read = self.completion_prompt(prompt, sampling, truncate=truncate)
        return self._stream(self.with_form(read, sampling), sampling, timeout_s)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        thinking: bool | None = None,
        truncate: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: ToolRequest | None = None,
        ending: PromptEnding = "reply",
        most_tokens: int | None = None,
        must_fit: bool = True,
    ) -> Prompt:
        """The prompt of a conversation; arguments and errors are those of `stream_chat`.

        `variables` are further variables of the chat template. Of a prompt of more than
        `most_tokens`, the newest stay. One that need not fit is only counted. `TextLimit` says how
        much text is read.
        """
        from mrs.engine.prompt import Prompt
        from mrs.tools.tool_caller import with_calls_shown

        thinking = self._thinking.is_on(sampling, thinking)
        variables = {**self._thinking.variables(sampling, thinking), **(variables or {})}
        caller = self._caller(tools)
        definitions = caller.definitions if caller else ()

        must_fit = must_fit and not truncate and most_tokens is None
        if truncate:
            messages = newest_turns(messages, self.text_limit.has_room)
        self.text_limit.check_messages(messages, definitions, variables, must_fit=must_fit)

        def read(messages: Sequence[Message]) -> tuple[list[int], list[Prepared]]:
            shown = caller.messages(messages) if caller else with_calls_shown(messages, self._text)
            return self._read(shown, thinking, variables, definitions, ending, must_fit)

        prompt_ids, images = read(messages)
        if truncate and len(prompt_ids) >= self.context_tokens:
            most_tokens = max_prompt_tokens(self.context_tokens, sampling.max_tokens)
            messages = newest_turns(messages, lambda turns: len(read(turns)[0]) <= most_tokens)
            prompt_ids, images = read(messages)
        if not images:  # the tokens of an image cannot be cut
            prompt_ids = self._cut(prompt_ids, sampling, truncate, most_tokens)
        elif most_tokens is not None and len(prompt_ids) > most_tokens:
            raise UsageError("a prompt with images cannot be cut", hint="leave out messages")
        opening, placed = self._text.opening(prompt_ids), self._placed(prompt_ids, images)
        thoughts = self._text.new_thoughts(prompt_ids, has_calls=tools is not None)
        return Prompt(prompt_ids, opening, placed, is_chat=True, new_thoughts=thoughts)

    def completion_prompt(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        truncate: bool = False,
        most_tokens: int | None = None,
    ) -> Prompt:
        """The prompt of a text, or of token ids, to continue; the newest `most_tokens` stay."""
        from mrs.engine.prompt import Prompt

        must_fit = not truncate and most_tokens is None
        if isinstance(prompt, str):
            self.text_limit.check(prompt, must_fit=must_fit)
            prompt_ids = self._text.encode_raw(prompt)
        elif must_fit and len(prompt) > self.context_tokens:
            raise ContextFull(len(prompt), self.context_tokens)
        else:
            prompt_ids = self.known_ids(prompt)
        return Prompt(self._cut(prompt_ids, sampling, truncate, most_tokens))

    @cached_property
    def text_limit(self) -> TextLimit:
        """How much text is read for the model's context."""
        from mrs.text.text_limit import TextLimit

        return TextLimit(self.tokenizer, self.context_tokens)

    def known_ids(self, ids: Sequence[int]) -> list[int]:
        """The given token ids. Raises UsageError for one that the model does not have."""
        count = self.engine.embedded_tokens
        wrong = next((each for each in ids if not 0 <= each < count), None)
        if wrong is not None:
            raise UsageError(
                f"there is no token {wrong}: the model has the tokens 0 to {count - 1}",
                hint="give ids of this model's own tokens",
            )
        return list(ids)

    def with_form(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        thinking: bool | None = None,
        tools: ToolRequest | None = None,
        owner: bytes = b"",
    ) -> Prompt:
        """The prompt for replies that match the grammar of `sampling`, or call some of `tools`.

        Their thoughts have its budget. Grammars are remembered for their `owner`. Raises
        UsageError and Unsupported for what cannot be enforced, and NoRoom.
        """
        caller = self._caller(tools)
        grammar = caller.grammar(sampling.grammar) if caller else sampling.grammar
        if grammar is not None:
            from mrs.grammar.thought import thought_after

            thought = thought_after(
                self._text,
                prompt.ids if prompt.is_chat else None,
                self._thinking.is_on(sampling, thinking),
                has_channel=grammar.kind == "tool_calls",
            )
            masks = self._grammars.masks(
                grammar, thought, is_greedy=sampling.temperature == 0, owner=owner
            )
            calls = caller.parser if caller else None
            prompt = replace(prompt, new_constraint=masks, has_grammar=True, new_calls=calls)
        room = self.context_tokens - len(prompt.ids)
        return self._thinking.limited(
            prompt, sampling, thinking, room=room, has_calls=caller is not None
        )

    def start(
        self,
        prompt: Prompt,
        sampling: Sampling,
        outbox: Outbox,
        *,
        timeout_s: float | None = None,
        prefix_salt: int = 0,
    ) -> ReplyEvents:
        """Start a reply whose outputs the engine's thread puts into `outbox`, without waiting.

        `ReplyEvents.take` turns these outputs into events. Raises as `stream_chat` does.
        """
        from mrs.engine.reply_events import ReplyEvents, sequence_request

        request = sequence_request(self._text, prompt, sampling, timeout_s, prefix_salt)
        sequence = self.engine.start(request, outbox)
        return ReplyEvents(sequence, self._text, prompt, sampling, self.plan.speed, self.pace)

    def require_replies(self) -> None:
        """Raise Unsupported if the model makes none."""
        self.engine.require_replies()

    def require_embeddings(self, dimensions: int | None = None) -> None:
        """Raise Unsupported if there are no embeddings, or none of so many values."""
        if self.readout is not None and self.readout.is_score:
            raise Unsupported(
                "the model ranks texts and makes no embeddings", hint=f"use {self.readout.commands}"
            )
        if dimensions is not None and self.readout is None:
            raise Unsupported("embeddings of a model for replies cannot be shortened")
        if dimensions is not None and self.readout is not None:
            self.readout.check_dimensions(dimensions)

    @cached_property
    def ranking_prompts(self) -> RankingPrompts:
        """Makes prompts of questions and documents. Raises Unsupported if it does not rank."""
        from mrs.ranker import RankingPrompts

        return RankingPrompts(self._text, self.readout, self.engine.ranking, self.text_limit)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate: bool = False,
    ) -> list[Ranked]:
        """The documents by how well they answer the question, best first.

        Other arguments are those of `RankingPrompts.prompt`. Raises Unsupported.
        """
        from mrs.ranker import Ranked, best_first

        prompts = [
            self.ranking_prompts.prompt(query, each, instruction=instruction, truncate=truncate)
            for each in documents
        ]
        vectors = list(self.embedder.vectors(prompts))
        order = best_first(each.values for each in vectors)
        return [Ranked(index, score, vectors[index].tokens) for index, score in order]

    def embedding_prompt(
        self, text: str | Sequence[int], *, prompt_name: str | None = None, truncate: bool = False
    ) -> Prompt:
        """The tokens of a text to embed, or given token ids.

        The text follows the prompt of that name, by default the one that the model's files say.
        With `truncate`, one that exceeds the context loses its end. Raises UsageError.
        """
        from mrs.engine.prompt import Prompt

        most_tokens = self.context_tokens if truncate else None
        if not isinstance(text, str):
            return Prompt(self.known_ids(text)[:most_tokens])
        if self.readout is None:
            if prompt_name is not None:
                raise UsageError(f"the model has no prompt {prompt_name!r}")
            return self.completion_prompt(text, Sampling(max_tokens=1), truncate=truncate)
        text = self.readout.prompted(text, prompt_name)
        self.text_limit.check(text, must_fit=not truncate)
        return Prompt(self.tokenizer.encode_whole(text, most_tokens=most_tokens).ids)

    @property
    def embedder(self) -> Embedder:
        """Makes vectors of prompts. Raises UsageError after `close`."""
        from mrs.embedder import Embedder

        return Embedder(self.engine, self._text)

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        prompt_name: str | None = None,
        truncate: bool = False,
        dimensions: int | None = None,
    ) -> list[Vector]:
        """The embedding of each text, or its first `dimensions` values.

        Other arguments and errors are those of `embedding_prompt` and `require_embeddings`.
        """
        from mrs.embedder import shortened

        self.require_embeddings(dimensions)
        prompts = [
            self.embedding_prompt(text, prompt_name=prompt_name, truncate=truncate)
            for text in texts
        ]
        found = self.embedder.vectors(prompts)
        return [each._replace(values=shortened(each.values, dimensions)) for each in found]

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """The number of prompt tokens of a conversation."""
        sampling = Sampling()
        self.text_limit.check_messages(messages, must_fit=False)
        thinking = self._thinking.is_on(sampling, None)
        variables = self._thinking.variables(sampling, thinking)
        return len(self._read(messages, thinking, variables, must_fit=False)[0])

    def num_images(self, messages: Sequence[Message]) -> int:
        """The images of a conversation, those into which its videos are cut included."""
        media = self._media_loader.load(messages) if self._media_loader else []
        return sum(len(each.images) for each in media)

    def memory(self) -> list[DeviceMemoryUsage]:
        """The memory that this process uses on the plan's devices now, and what is free there."""
        from mrs.engine.profile.memory_in_use import device_memory_usage

        used = zip(self.plan.devices, self.plan.breakdowns, strict=True)
        return device_memory_usage(
            device.torch_device for device, breakdown in used if breakdown.is_used
        )

    def close(self) -> None:
        """Write the prefix cache to disk if it has a folder, then free all memory.

        Further calls have no effect.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            if self.cluster is not None:
                self.cluster.close()
            else:
                learn_speed(self.plan, self.pace)

    def _cut(
        self, prompt_ids: list[int], sampling: Sampling, truncate: bool, most_tokens: int | None
    ) -> list[int]:
        if most_tokens is not None and len(prompt_ids) > most_tokens:
            prompt_ids = newest_tokens(prompt_ids, most_tokens, self.tokenizer.bos_id)
        if not truncate or len(prompt_ids) < self.context_tokens:
            return prompt_ids
        most_tokens = max_prompt_tokens(self.context_tokens, sampling.max_tokens)
        return newest_tokens(prompt_ids, most_tokens, self.tokenizer.bos_id)

    def _read(
        self,
        messages: Sequence[Message],
        thinking: bool | None,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        ending: PromptEnding = "reply",
        must_fit: bool = True,
    ) -> tuple[list[int], list[Prepared]]:
        """The prompt ids of a conversation, and its images.

        Raises UsageError after `close`, and ContextFull for a long text that `must_fit`.
        """
        _ = self.engine
        media: list[PreparedMedia] = []
        if self._media_loader is not None:
            media = self._media_loader.load(messages)
        elif any(message.get("images") for message in messages):
            raise UsageError(
                "this model was loaded without vision support",
                hint="if it is a vision model, load it with vision-plain",
            )
        prompt_ids = self._text.prompt_ids(
            messages,
            thinking=thinking,
            image_texts=[each.text for each in media],
            videos=[index for index, each in enumerate(media) if each.is_video],
            variables=variables,
            tools=tools,
            ending=ending,
            check=self.text_limit.check_count if must_fit else lambda text: None,
        )
        return prompt_ids, [image for each in media for image in each.images]

    def _caller(self, tools: ToolRequest | None) -> ToolCaller | None:
        if tools is None:
            return None
        from mrs.tools.tool_caller import ToolCaller

        return ToolCaller(tools, self._text)

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        from mrs.grammar.compiler import GrammarCompiler

        vocab_size, marks = self.engine.vocab_size, self._text.marks
        compiler = GrammarCompiler(self.tokenizer, vocab_size, self._text.stop_ids, marks)
        if self.plan.budget is not None:
            compiler.limit(self.plan.budget.grammars)
        return compiler

    def _placed(self, prompt_ids: Sequence[int], images: Sequence[Prepared]) -> list[ImageInput]:
        from mrs.engine.image_input import place_images

        vision = self.engine.vision
        return place_images(vision, prompt_ids, images) if vision is not None else []

    def _stream(self, prompt: Prompt, sampling: Sampling, timeout_s: float | None) -> Reply:
        from mrs.engine.reply import Reply

        return Reply(
            self.engine, self._text, prompt, sampling, self.plan.speed, self.pace, timeout_s
        )
