"""RequestQueue: one model's requests in one replica, active and waiting, and the rate at which they end."""

from __future__ import annotations

from collections import Counter
from math import ceil

from actors.router.routed_request import RoutedRequest
from core.settings import RoutingSettings
from projections.policy.fair_queue import FairQueue

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
