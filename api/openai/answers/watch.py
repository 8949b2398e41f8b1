"""The times of one request, told to the metrics as they come."""

from __future__ import annotations

from actors.metrics import ModelMetrics
from api.openai.answers.usage import Usage
from core.clock import Clock


class Watch:
    """Runs from a request's arrival to its end; costs one reading of the clock each time."""

    def __init__(self, clock: Clock, metrics: ModelMetrics, arrived_ms: int) -> None:
        self._clock = clock
        self._metrics = metrics
        self._arrived_ms = arrived_ms
        self._last_ms: int | None = None
        self._gap = metrics.inter_token_seconds.observe

    def __repr__(self) -> str:
        return f"<Watch of {'no tokens yet' if self._last_ms is None else 'a request that has tokens'}>"

    def tokens(self) -> None:
        """Tokens of the first choice came now; the others' times would say nothing of any one stream."""
        now_ms, last_ms = self._clock.monotonic_ms(), self._last_ms
        self._last_ms = now_ms
        if last_ms is None:
            self._metrics.first_token_seconds.observe((now_ms - self._arrived_ms) / 1000)
        else:
            self._gap((now_ms - last_ms) / 1000)

    def ended(self, outcome: str, usage: Usage) -> None:
        """The request is over."""
        self._metrics.finished(outcome, (self._clock.monotonic_ms() - self._arrived_ms) / 1000)
        if self._last_ms is not None:
            self._metrics.prompt_tokens.inc(usage.prompt_tokens)
            self._metrics.cached_tokens.inc(usage.cached_tokens)
            self._metrics.completion_tokens.inc(usage.completion_tokens)
