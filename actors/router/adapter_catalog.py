"""AdapterCatalog: the adapters (LoRA) that a replica can route to, by the names that clients ask for.

1. Workers may serve different weights under one name, as while they are replaced one after the other. The one that was
   loaded last counts, by `Adapter.loaded_ms`, and of equal times the greater digest: all replicas with equal folds
   agree. Requests go only to workers that serve that one; those that have begun stay with theirs.
2. Of two models with an adapter of one name, the first model by name has it.
3. A name of which the workers ended, and did not unload it, is known further: it is away, and not unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core.events import Adapter
from core.ids import WorkerId
from core.models import ServedAdapter
from projections.folds.kv_fold import Member, adapters_of
from projections.folds.state import State

AWAY_MAX = 256
"""Names that are known further though no worker serves them; the oldest goes first."""


class NamedAdapter(NamedTuple):
    """An adapter under its name."""

    model: str
    """The model that it adapts."""
    id: str
    """`core.events.kv.Adapter.id`."""
    holders: frozenset[WorkerId]


class AdapterCatalog:
    """See the module's text. Read anew after each change of the fold's workers."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._serving: list[Member] | None = None
        self._named: dict[str, NamedAdapter] = {}
        self._away: dict[str, NamedAdapter] = {}
        """At most AWAY_MAX, the oldest first."""

    def __repr__(self) -> str:
        return f"<AdapterCatalog {', '.join(self._named)}>"

    def find(self, name: str) -> NamedAdapter | None:
        """The adapter of that name; None if there is none. O(1) while no worker joins, ends or changes its adapters,
        else O(workers and their adapters)."""
        self._refresh()
        return self._named.get(name) or self._away.get(name)

    def of(self, model: str) -> tuple[ServedAdapter, ...]:
        """The adapters of the model, by name; of those that are away, with 0 workers. O(adapters)."""
        self._refresh()
        found = {**self._away, **self._named}
        if not found:
            return ()
        return tuple(
            ServedAdapter(name, each.id, len(each.holders))
            for name, each in sorted(found.items())
            if each.model == model
        )

    def _refresh(self) -> None:
        serving = self._state.serving()
        if serving is self._serving:
            return
        before, self._serving = self._named, serving
        self._named = newest_adapters(serving)
        alive = {member.worker for member in serving}
        for name, gone in before.items():
            if name not in self._named and not gone.holders & alive:
                self._away[name] = gone._replace(holders=frozenset())
        for name in self._named:
            self._away.pop(name, None)
        while len(self._away) > AWAY_MAX:
            del self._away[next(iter(self._away))]


def newest_adapters(serving: Iterable[Member]) -> dict[str, NamedAdapter]:
    """By name, the adapter that counts and its workers; see the module's text. O(workers and their adapters)."""
    claims: dict[str, list[tuple[str, Adapter, WorkerId]]] = {}
    for member in serving:
        for adapter in adapters_of(member):
            assert member.joined is not None  # adapters are said in it
            claims.setdefault(adapter.name, []).append((member.joined.model, adapter, member.worker))
    found = {}
    for name, claimed in claims.items():
        model = min(each for each, _, _ in claimed)
        ours = [(adapter, worker) for its_model, adapter, worker in claimed if its_model == model]
        newest, _ = max(ours, key=lambda each: (each[0].loaded_ms, each[0].digest))
        holders = frozenset(worker for adapter, worker in ours if adapter.digest == newest.digest)
        found[name] = NamedAdapter(model, newest.id, holders)
    return found
