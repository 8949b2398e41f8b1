"""ModelCatalog: the models that a replica can serve, learned from their workers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from actors.membership.registration import Registration
from actors.transport.reconnecting_client import ReconnectingClient
from core.clock import Clock
from core.errors import PeerError
from core.failure import log_failure
from core.models import ModelCard
from core.served_names import NAMES_MAX, ServedNames

LEARN_RETRY_S = 1.0
"""Between tries to get a tokenizer from a worker."""

_logger = logging.getLogger(__name__)


class ModelCardSource(NamedTuple):
    """A registered worker, whether connected or not."""

    client: ReconnectingClient
    registration: Registration


class _KnownModel(NamedTuple):
    card: ModelCard
    registration: Registration


class ModelCatalog:
    """The card of each model comes from one of its workers; once learned, a model is known for ever.

    It is learned again when no worker is left of the kind that it was learned from: after that the block size, the
    context or the tokenizer may be others.
    """

    def __init__(
        self,
        clock: Clock,
        sources: Callable[[str], Iterable[ModelCardSource]],
        on_change: Callable[[], None],
        on_learned: Callable[[Registration, dict[str, bytes]], None] = lambda _registration, _files: None,
    ) -> None:
        """`on_learned` is called with the worker's registration and the model's files."""
        self._clock = clock
        self._sources = sources
        self._on_change = on_change
        self._on_learned = on_learned
        self._served: dict[str, tuple[str, ...]] = {}
        """The further names of every model that has a worker."""
        self._unserved: dict[str, tuple[str, ...]] = {}
        """The further names of models that had a worker."""
        self._names = self._old_names = ServedNames()
        """Lookup tables over `_served` and `_unserved`."""
        self._known: dict[str, _KnownModel] = {}
        self._outdated: set[str] = set()
        """Models that had no worker since they were learned."""
        self._learning: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<ModelCatalog {', '.join(sorted(self._known))}>"

    @property
    def models(self) -> list[str]:
        """Every model that can be spoken for, sorted."""
        return sorted(self._known)

    def __contains__(self, model: str) -> bool:
        return model in self._known

    def model_of(self, name: str) -> str:
        """The model's own name, whichever of its names this is; the name as it is if no model has it."""
        return self._names.model_of(name) or self._old_names.model_of(name) or name

    def card(self, model: str, workers: int) -> ModelCard:
        """The model's card with that many workers; KeyError if it was never learned."""
        known = self._known[model]
        names = self._names.further.get(model) or self._old_names.further.get(model, ())
        if known.card.workers != workers or known.card.further_names != names:  # seldom: and every request asks
            card = dataclasses.replace(known.card, workers=workers, further_names=names)
            self._known[model] = known = known._replace(card=card)
        return known.card

    def all_names(self) -> list[str]:
        """All names and name patterns that requests may use."""
        return [*self._names.all(), *self._old_names.all()]

    def context_max(self, model: str) -> int:
        """The longest prompt with answer, in tokens; KeyError if it was never learned."""
        return self._known[model].card.context_max

    def block_size(self, model: str) -> int:
        """The block size of the workers that serve the model; KeyError if it was never learned."""
        return self._known[model].registration.block_size

    def consider(self, model: str) -> None:
        """A worker of the model came, went or was connected: the model is learned if that is due."""
        sources = list(self._sources(model))
        self._update_names(model, sources)
        if not sources:
            self._outdated |= {model} & self._known.keys()
        elif model not in self._learning and self._source(model) is not None:
            task = self._learning[model] = asyncio.create_task(self._learn(model), name=f"learn {model}")
            task.add_done_callback(lambda _: self._learning.pop(model))
            task.add_done_callback(log_failure(_logger, f"model {model} could not be learned"))

    def _update_names(self, model: str, sources: list[ModelCardSource]) -> None:
        """The model has the names that its workers give it; without a worker it keeps those that it had."""
        before = self._served.get(model)
        if sources:
            names = tuple(dict.fromkeys(name for each in sources for name in each.registration.aliases))[:NAMES_MAX]
            if names == before:
                return
            self._served[model] = names
            self._unserved.pop(model, None)
        elif before is not None:
            self._unserved[model] = self._served.pop(model)
        else:
            return
        self._names, self._old_names = ServedNames.of(self._served), ServedNames.of(self._unserved)

    def restore(self, registration: Registration, files: dict[str, bytes]) -> None:
        """The model is known as a worker of earlier had it, until it is learned from a worker."""
        model = registration.model
        if model in self._known:
            return
        self._store(registration, files)
        self._outdated.add(model)
        if model not in self._served:
            self._unserved[model] = registration.aliases[:NAMES_MAX]
            self._old_names = ServedNames.of(self._unserved)

    async def close(self) -> None:
        """Nothing is being learned."""
        tasks = list(self._learning.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _source(self, model: str, turn: int = 0) -> ModelCardSource | None:
        """The worker to learn from, another one each turn; None if nothing is to be learned or no worker is
        connected."""
        sources, known = list(self._sources(model)), self._known.get(model)
        if known is not None and model not in self._outdated:
            kind = known.registration.kind
            if any(source.registration.kind == kind for source in sources):
                return None
        connected = [source for source in sources if source.client.up]
        return connected[turn % len(connected)] if connected else None

    async def _learn(self, model: str) -> None:
        turns = itertools.count()
        while (source := self._source(model, next(turns))) is not None:
            try:
                files = await source.client.files()
            except (PeerError, TimeoutError) as error:
                _logger.warning("worker %s did not give its tokenizer: %s", source.client.worker, error)
                await asyncio.sleep(LEARN_RETRY_S)
            else:
                self._store(source.registration, files)
                self._on_learned(source.registration, files)

    def _store(self, registration: Registration, files: dict[str, bytes]) -> None:
        card = ModelCard(
            name=registration.model,
            engine=registration.engine,
            context_max=registration.context_max,
            created_s=self._clock.wall_ms() // 1000,
            workers=0,
            files=files,
            embedding_size=registration.embedding_size,
        )
        self._known[registration.model] = _KnownModel(card, registration)
        self._outdated.discard(registration.model)
        self._on_change()
