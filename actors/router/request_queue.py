"""RequestQueue: one model's requests in one replica, active and waiting; their rate, and their counts for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from math import ceil
from typing import Any

from actors.metrics.buckets import WAIT_MS
from actors.router.routed_request import RoutedRequest
from core.settings import RoutingSettings
from projections.policy.fair_queue import FairQueue


class WaitHistogram:
    """The waits of one model's admitted requests."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_MS) + 1)
        self.sum_ms = 0

    def __repr__(self) -> str:
        return f"<WaitHistogram of {sum(self.counts)} requests, {self.sum_ms} ms>"

    def note(self, waited_ms: int) -> None:
        """One more wait is counted."""
        self.counts[bisect_left(WAIT_MS, waited_ms)] += 1
        self.sum_ms += waited_ms


class QueueCounts:
    """Refusals and waits, counted for metrics. Grows with models, not with requests."""

    def __init__(self) -> None:
        self._refused = Counter[tuple[str, str]]()
        self._waits: dict[str, WaitHistogram] = {}

    def __repr__(self) -> str:
        return f"<QueueCounts: {self._refused.total()} turned away>"

    def on_admitted(self, model: str, waited_ms: int) -> None:
        """One request left the queue for a slot after a wait."""
        self._waits.setdefault(model, WaitHistogram()).note(waited_ms)

    def on_turned_away(self, model: str, reason: str) -> None:
        """One request was turned away; the reason is of `core.events.routing.TURNED_AWAY`."""
        self._refused[model, reason] += 1

    def describe(self) -> dict[str, Any]:
        """Rows by model, and by reason."""
        return {
            "turned_away": [
                {"model": model, "reason": reason, "requests": count}
                for (model, reason), count in sorted(self._refused.items())
            ],
            "waits": [
                {"model": model, "counts": list(waits.counts), "sum_ms": waits.sum_ms}
                for model, waits in sorted(self._waits.items())
            ],
        }


ANSWER_TOKENS = 256
"""Assumed length of an answer until the first answers have ended."""
SMOOTHING = 1 / 16
"""Weight of the newest request in a running mean."""
RETRY_AFTER_MAX_S = 60
"""The longest time after which a client is told to try again; the shortest is a second."""


class RequestQueue:
    """One model's queue, its slots in use and its service rate. Times are of the monotonic clock."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.fair_queue = FairQueue[RoutedRequest]()
        self.active = 0
        """Requests of this replica that have a slot."""
        self.admitted = 0
        """Active requests that left the queue and have no attempt yet."""
        self.share = 0
        """Slots that this replica may always take, as counted last …"""
        self.share_until_us = 0
        """… and the time until which that count holds."""
        self.tenants = Counter[str]()
        """Active requests by tenant."""
        self._service_ms = 0.0
        """Running mean of the time a slot is occupied; 0 until one was freed."""
        self._answer_tokens = float(ANSWER_TOKENS)

    def __repr__(self) -> str:
        return f"<RequestQueue {self.model}: {self.active} active, {len(self.fair_queue)} waiting>"

    def occupy_slot(self, tenant: str) -> None:
        """One more request has a slot."""
        self.active += 1
        self.tenants[tenant] += 1

    def free_slot(self, tenant: str) -> None:
        """One request has freed its slot."""
        self.active -= 1
        left = self.tenants[tenant] - 1
        if left:
            self.tenants[tenant] = left
        else:
            del self.tenants[tenant]

    def learn(self, held_ms: int, answer_tokens: int) -> None:
        """The running means have one more answer: the time it occupied a slot, and its tokens."""
        self._service_ms += (held_ms - self._service_ms) * (SMOOTHING if self._service_ms else 1)
        self._answer_tokens += (answer_tokens - self._answer_tokens) * SMOOTHING

    def work(self, request: RoutedRequest) -> int:
        """Expected cost of the request in tokens: its prompt, and a usual answer if it may be as long."""
        return max(1, request.prompt_tokens + min(request.answer_max, round(self._answer_tokens)))

    def wait_ms(self, depth: int) -> float:
        """Expected wait at a queue position, at the present rate of ends; 0 while no rate is known."""
        return depth * self._service_ms / max(1, self.active)

    def waiting_max(self, settings: RoutingSettings) -> int:
        """Requests that may wait now: as many as are served within the longest wait."""
        each_ms = self.wait_ms(1)
        if not each_ms:
            return settings.queue_max
        return min(settings.queue_max, ceil(settings.queue_wait_max_ms / each_ms))

    def retry_after_s(self) -> int:
        """Expected seconds until the queue is served: 1 to RETRY_AFTER_MAX_S."""
        return max(1, min(RETRY_AFTER_MAX_S, ceil(self.wait_ms(len(self.fair_queue)) / 1000)))
