"""A loaded model, which answers conversations and continues texts until it is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mrs.errors import UsageError
from mrs.events import DeviceMemoryUsage
from mrs.plan.learn_speed import learn_speed
from mrs.plan.plan import Plan
from mrs.plan.speed.learnt import Pace
from mrs.request import Media, Message, RunRequest, Sampling
from mrs.run.prompt_reader import PromptReader

if TYPE_CHECKING:
    from mrs.architecture.pooler import Pooler
    from mrs.distributed.cluster import Cluster
    from mrs.engine.loop import EngineLoop, Outbox
    from mrs.engine.prompt import Prompt
    from mrs.engine.reply import Reply
    from mrs.engine.reply_events import ReplyEvents
    from mrs.process.promises import Promise
    from mrs.process.turns import Client
    from mrs.run.classifier import Classified
    from mrs.run.embedder import Embedder, Vector
    from mrs.run.ranker import Ranked
    from mrs.run.transcription.transcript import TranscriptSettings
    from mrs.run.transcription.transcript_reply import TranscriptReply
    from mrs.text.tokenizer import Tokenizer
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
        prompts: PromptReader,
        engine: EngineLoop,
        suggested_sampling: Mapping[str, float] | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.plan = plan
        self.summary = plan.summary if cluster is None else f"{plan.summary}: {cluster.summary}"
        #: The workers that compute some of the layers, if there are any.
        self.cluster = cluster
        self.has_chat_template = prompts.text.template is not None
        self.context_tokens = engine.context_tokens
        #: Sampling settings that the model's files suggest, by name.
        self.suggested_sampling = suggested_sampling or {}
        self.adapters = request.adapters
        self._text = prompts.text
        self._prompts = prompts
        self._engine: EngineLoop | None = engine
        self.pace = Pace()
        #: What other processes know of its memory.
        self.promise: Promise | None = None

    @property
    def engine(self) -> EngineLoop:
        """The engine that generates tokens. Raises UsageError after `close`."""
        if self._engine is None:
            raise UsageError(
                "the model is closed", where=self.plan.model.model_id, hint="load it again"
            )
        return self._engine

    @property
    def prompts(self) -> PromptReader:
        """Makes prompts for it. Raises UsageError after `close`."""
        _ = self.engine
        return self._prompts

    @property
    def thinks(self) -> bool:
        """Whether replies may have thoughts that can be told from answers."""
        return self._text.thinks

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
    ) -> Reply | TranscriptReply:
        """Answer the last message of a conversation; `thinking` overrides the request's setting.

        The reply may or must call some of `tools`, in the format of the model's template.
        With `truncate`, a conversation that exceeds the context loses its oldest turns; if the
        newest turn alone exceeds it, the prompt loses its oldest tokens. A reply that is not
        complete after `timeout_s` fails. Raises UsageError for images without vision support.
        A model that only transcribes says what is heard in the message's one audio file.
        """
        if self.prompts.speech is not None:
            from mrs.run.transcription.transcript_reply import asked_transcript

            audio, settings = asked_transcript(messages, sampling)
            return self.transcribe(audio, settings, timeout_s=timeout_s)
        prompt = self.prompts.chat(
            messages, sampling, thinking=thinking, truncate=truncate, tools=tools
        )
        return self._stream(prompt, sampling, timeout_s)

    def transcribe(
        self, audio: Media, settings: TranscriptSettings, *, timeout_s: float | None = None
    ) -> TranscriptReply:
        """What is said in a recording, by a model that does nothing but transcribe.

        The reply to a window that is not complete after `timeout_s` fails. Raises MrsError.
        """
        from mrs.run.transcription.transcript_reply import TranscriptReply

        transcript = self.prompts.transcript(self.prompts.recording(audio), settings)
        return TranscriptReply(
            transcript, lambda prompt, sampling: self._stream(prompt, sampling, timeout_s)
        )

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
        read = self.prompts.completion(prompt, sampling, truncate=truncate)
        return self._stream(read, sampling, timeout_s)

    def start(
        self,
        prompt: Prompt,
        sampling: Sampling,
        outbox: Outbox,
        *,
        timeout_s: float | None = None,
        prefix_salt: int = 0,
        client: Client = (),
    ) -> ReplyEvents:
        """Start a reply whose outputs the engine's thread puts into `outbox`, without waiting.

        `ReplyEvents.take` turns these outputs into events. Raises as `stream_chat` does.
        """
        from mrs.engine.reply_events import ReplyEvents, sequence_request

        request = sequence_request(self._text, prompt, sampling, timeout_s, prefix_salt, client)
        sequence = self.engine.start(request, outbox)
        return ReplyEvents(sequence, self._text, prompt, sampling, self.plan.speed, self.pace)

    def require_replies(self) -> None:
        """Raise Unsupported if the model makes none."""
        self.engine.spec.require_replies()

    def require_embeddings(self, dimensions: int | None = None) -> None:
        """Raise Unsupported if there are no embeddings, or none with `dimensions` values."""
        self.engine.spec.require_embeddings(dimensions)

    def prompt_tokens(
        self, messages: Sequence[Message], *, tools: ToolRequest | None = None
    ) -> int:
        """The number of prompt tokens of a conversation, with the tools that it describes."""
        return self.prompts.num_tokens(messages, tools)

    def num_images(self, messages: Sequence[Message]) -> int:
        """The images of a conversation, those into which its videos are cut included."""
        return self.prompts.num_images(messages)

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
        from mrs.run.ranker import Ranked, best_first

        ranking = self.prompts.ranking
        prompts = [
            ranking.prompt(query, each, instruction=instruction, truncate=truncate)
            for each in documents
        ]
        vectors = list(self.embedder.vectors(prompts))
        order = best_first(each.values for each in vectors)
        return [Ranked(index, score, vectors[index].tokens) for index, score in order]

    def require_classes(self) -> Pooler:
        """What makes scores of classes. Raises Unsupported if the model has none."""
        return self.engine.spec.require_classes()

    def classify(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        text_pair: str | None = None,
        truncate: bool = False,
    ) -> list[Classified]:
        """The class of each text, alone or with `text_pair`.

        Other arguments and errors are those of `PromptReader.classification` and `require_classes`.
        """
        from mrs.run.classifier import classified

        pooler = self.require_classes()
        prompts = [
            self.prompts.classification(text, text_pair, truncate=truncate) for text in texts
        ]
        return [classified(pooler, *vector) for vector in self.embedder.vectors(prompts)]

    @property
    def embedder(self) -> Embedder:
        """Makes vectors of prompts. Raises UsageError after `close`."""
        from mrs.run.embedder import Embedder

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

        Other arguments and errors are those of `PromptReader.embedding` and `require_embeddings`.
        """
        from mrs.run.embedder import shortened

        self.require_embeddings(dimensions)
        prompts = [
            self.prompts.embedding(text, prompt_name=prompt_name, truncate=truncate)
            for text in texts
        ]
        return [
            vector._replace(values=shortened(vector.values, dimensions))
            for vector in self.embedder.vectors(prompts)
        ]

    def memory(self) -> list[DeviceMemoryUsage]:
        """The memory that this process uses on the plan's devices now, and what is free there."""
        from mrs.engine.profile.memory_in_use import device_memory_usage

        used = zip(self.plan.devices, self.plan.breakdowns, strict=True)
        return device_memory_usage(
            device.torch_device for device, breakdown in used if breakdown.is_used
        )

    def close(self) -> None:
        """Write the prefix cache to disk if it has a folder, then free all memory.

        Later calls have no effect.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            if self.promise is not None:
                self.promise.withdraw()
            if self.cluster is not None:
                self.cluster.close()
            else:
                learn_speed(self.plan, self.pace)

    def _stream(self, prompt: Prompt, sampling: Sampling, timeout_s: float | None) -> Reply:
        from mrs.engine.reply import Reply

        return Reply(
            self.engine, self._text, prompt, sampling, self.plan.speed, self.pace, timeout_s
        )
