"""Metrics in the format of Prometheus, with the names of vLLM after `mrs:`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mrs.server.log.record import ReplyRecord, RequestRecord

if TYPE_CHECKING:
    from mrs.engine.engine import EngineStats

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
_BETWEEN_TOKENS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
)  # fmt: skip
#: Clients may send any word as the method, and each label of a metric needs memory.
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))

#: What the engine counts: name, whether it only grows, description.
_ENGINE: dict[str, tuple[str, bool, str]] = {
    "running": ("num_requests_running", False, "Sequences that run"),
    "waiting": ("num_requests_waiting", False, "Sequences that wait"),
    "preempted": ("num_preemptions", True, "Sequences that had to wait again"),
    "cached_tokens": ("prefix_cache_hits", True, "Tokens from the prefix cache"),
    "queried_tokens": ("prefix_cache_queries", True, "Tokens looked up in the prefix cache"),
    "kv_cache_share": ("kv_cache_usage_perc", False, "Share of blocks of running sequences"),
    "drafts": ("spec_decode_num_drafts", True, "Drafts of several tokens"),
    "drafted_tokens": ("spec_decode_num_draft_tokens", True, "Drafted tokens"),
    "accepted_tokens": ("spec_decode_num_accepted_tokens", True, "Drafted tokens in replies"),
    "computed_tokens": ("computed_tokens", True, "Tokens that were computed"),
}

#: What it counts by the position of tokens in their draft: name, description.
_BY_POSITION = {
    "drafted_by_position": (
        "spec_decode_num_draft_tokens_per_pos",
        "Drafted tokens by their position in the draft",
    ),
    "accepted_by_position": (
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens in replies by their position in the draft",
    ),
}


class Metrics:
    """Counts requests as they end; `stats` gives the engine's counters for each loaded model."""

    def __init__(self, stats: Callable[[], Mapping[str, EngineStats]]) -> None:
        self._registry = CollectorRegistry()
        self._http = Counter(
            "mrs:http_requests", "Requests", ["method", "path", "status"], registry=self._registry
        )
        self._counters = {
            name: Counter(f"mrs:{name}", text, ["model_name"], registry=self._registry)
            for name, text in (
                ("prompt_tokens", "Tokens of prompts"),
                ("generation_tokens", "Tokens of replies"),
            )
        }
        self._success = Counter(
            "mrs:request_success",
            "Finished replies",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._histograms = {
            name: Histogram(
                f"mrs:{name}", text, ["model_name"], buckets=buckets, registry=self._registry
            )
            for name, text, buckets in (
                ("time_to_first_token_seconds", "Time to the first token", _FIRST_TOKEN_S),
                ("inter_token_latency_seconds", "Mean time between tokens", _BETWEEN_TOKENS_S),
                ("e2e_request_latency_seconds", "Time of a reply", _REQUEST_S),
                ("request_queue_time_seconds", "Time before the first step", _REQUEST_S),
                ("request_prefill_time_seconds", "Time of the prompt", _REQUEST_S),
                ("request_decode_time_seconds", "Time after the first token", _REQUEST_S),
                ("request_prompt_tokens", "Tokens of a prompt", _TOKENS),
                ("request_generation_tokens", "Tokens of a reply", _TOKENS),
            )
        }
        self._registry.register(_EngineCollector(stats))

    def request(self, record: RequestRecord, route: str) -> None:
        """Add a request that has ended; `route` is the path without parameters."""
        method = record.method if record.method in _METHODS else "other"
        self._http.labels(method, route, str(record.status)).inc()
        for reply in record.replies:
            self._reply(record.model, reply)

    def _reply(self, model: str, reply: ReplyRecord) -> None:
        usage = reply.usage
        self._counters["prompt_tokens"].labels(model).inc(usage.prompt_tokens)
        self._counters["generation_tokens"].labels(model).inc(usage.completion_tokens)
        self._success.labels(model, reply.reason).inc()
        values = {
            "time_to_first_token_seconds": usage.prompt_s,
            "e2e_request_latency_seconds": usage.prompt_s + usage.completion_s,
            "request_queue_time_seconds": reply.queue_s,
            "request_prefill_time_seconds": max(usage.prompt_s - reply.queue_s, 0.0),
            "request_decode_time_seconds": usage.completion_s,
            "request_prompt_tokens": usage.prompt_tokens,
            "request_generation_tokens": usage.completion_tokens,
        }
        if usage.completion_tokens > 1:
            gap_s = usage.completion_s / (usage.completion_tokens - 1)
            values["inter_token_latency_seconds"] = gap_s
        for name, value in values.items():
            self._histograms[name].labels(model).observe(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector:
    """The engines' own counters at the time of a scrape."""

    def __init__(self, stats: Callable[[], Mapping[str, EngineStats]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for field, (name, grows, text) in _ENGINE.items():
            family = CounterMetricFamily if grows else GaugeMetricFamily
            metric = family(f"mrs:{name}", text, labels=["model_name"])
            for model, counters in stats.items():
                metric.add_metric([model], getattr(counters, field))
            yield metric
        for field, (name, text) in _BY_POSITION.items():
            labels = ["model_name", "position"]
            positions = CounterMetricFamily(f"mrs:{name}", text, labels=labels)
            for model, counters in stats.items():
                for position, count in enumerate(getattr(counters, field)):
                    positions.add_metric([model, str(position)], count)
            yield positions
