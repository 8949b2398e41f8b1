"""The times of one request, told to the metrics as they come."""

from __future__ import annotations

from actors.metrics.frontend_metrics import ModelMetrics
from api.openai.answers.usage import Usage
from core.clock import Clock


class Watch:
    """Runs from a request's arrival to its end; costs one reading of the clock each time."""

    __slots__ = ("_arrived_ms", "_clock", "_last_ns", "_metrics")

    def __init__(self, clock: Clock, metrics: ModelMetrics, arrived_ms: int) -> None:
        self._clock = clock
        self._metrics = metrics
        self._arrived_ms = arrived_ms
        self._last_ns: int | None = None

    def __repr__(self) -> str:
        return f"<Watch of {'no tokens yet' if self._last_ns is None else 'a request that has tokens'}>"

    def tokens(self) -> None:
        """Tokens of the first choice came now; the others' times would say nothing of any one stream."""
        now_ns, last_ns = self._clock.monotonic_ns(), self._last_ns
        self._last_ns = now_ns
        if last_ns is None:
            self._metrics.first_token_seconds.observe((now_ns // 1_000_000 - self._arrived_ms) / 1000)
        else:
            self._metrics.inter_token_seconds.observe((now_ns - last_ns) / 1e9)

    def ended(self, outcome: str, usage: Usage) -> None:
        """The request is over."""
        self._metrics.finished(outcome, (self._clock.monotonic_ms() - self._arrived_ms) / 1000)
        if self._last_ns is not None:
            self._metrics.prompt_tokens.inc(usage.prompt_tokens)
            self._metrics.cached_tokens.inc(usage.cached_tokens)
            self._metrics.completion_tokens.inc(usage.completion_tokens)
