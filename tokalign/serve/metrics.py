"""Counts for `/metrics`, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from tokalign.runtime.rounds import Round

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the text

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


class Metrics:
    """What one server has done so far. Every thread may count."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tokalign_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"tokalign_{name}", text, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests by path and HTTP status.", "path", "status")
        self.disconnected = counter("disconnected", "Clients that left before their answer.")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = counter(
            "cached_prompt_tokens",
            "Tokens of prompts whose keys and values were kept from earlier requests.",
        )
        self.output_tokens = counter(
            "output_tokens", "Tokens of answers, by how they were decoded.", "decoding"
        )
        self._proposed = counter("proposed_tokens", "Drafted tokens.", "source")
        self._accepted = counter(
            "accepted_tokens", "Drafted tokens that the target chose too.", "source"
        )
        self.first_token_seconds = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _SECONDS
        )
        self.tokens_per_round = histogram(
            "tokens_per_round", "Tokens that a round of speculation emitted.", _TOKENS
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Call a function for its value whenever metrics are read."""
        Gauge(f"tokalign_{name}", text, registry=self._registry).set_function(value)

    def observe(self, decoded: Round) -> None:
        """Count a round of speculation."""
        self.tokens_per_round.observe(len(decoded.emitted))
        for source in decoded.tree.sources:
            self._proposed.labels(source).inc()
        for source in decoded.sources[: decoded.accepted]:
            self._accepted.labels(source).inc()

    def text(self) -> bytes:
        """Everything so far, as Prometheus reads it."""
        return generate_latest(self._registry)
