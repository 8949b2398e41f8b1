"""RunningFetches: fetches that this replica's requests have under way, and sources of which the last one failed."""

from __future__ import annotations

from core.events import RequestRouted
from core.events.routing import PrefixFetch
from core.ids import RequestId, WorkerId
from projections.policy.prefix_fetch import FETCHES_MAX

FAILED_US = 10_000_000
"""A source is not asked for so long after a fetch from it failed."""


class RunningFetches:
    """Decisions record the part of it that they read (`core.events.routing.PrefixFetch.busy`)."""

    def __init__(self) -> None:
        self.made = self.failed = 0
        """Counts of fetches that were decided on, and of those of which less than half came."""
        self._sources: dict[RequestId, WorkerId] = {}
        """By request; each is in flight."""
        self._failed_until_us: dict[WorkerId, int] = {}

    def __repr__(self) -> str:
        return f"<RunningFetches {len(self._sources)} under way, {self.made} made, {self.failed} failed>"

    def describe(self) -> dict[str, int]:
        """Facts for `/state`."""
        return {"made": self.made, "failed": self.failed, "under_way": len(self._sources)}

    def busy(self, now_us: int) -> dict[WorkerId, int]:
        """The fetches under way by source, by id; FETCHES_MAX for one that is not to be asked."""
        self._failed_until_us = {
            source: until_us for source, until_us in self._failed_until_us.items() if until_us > now_us
        }
        found: dict[WorkerId, int] = dict.fromkeys(self._failed_until_us, FETCHES_MAX)
        for source in self._sources.values():
            if source not in self._failed_until_us:
                found[source] = found.get(source, 0) + 1
        return dict(sorted(found.items()))

    def begin(self, request: RequestId, source: WorkerId) -> None:
        """The request was sent with a fetch from that source."""
        self._sources[request] = source
        self.made += 1

    def end(self, request: RequestId) -> None:
        """The request's first token came, or its attempt ended; a request without a fetch has none to end."""
        self._sources.pop(request, None)

    def came(self, routed: RequestRouted, cached_tokens: int, now_us: int) -> None:
        """The engine took so many tokens from caches. If less than half of the fetch came, its source is not asked for
        a while."""
        fetch = routed.fetch
        if not isinstance(fetch, PrefixFetch) or not fetch.source:
            return
        if cached_tokens < routed.predicted_cached_tokens - fetch.tokens // 2:
            self.failed += 1
            self._failed_until_us[WorkerId(fetch.source)] = now_us + FAILED_US
