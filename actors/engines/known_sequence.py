"""A request inside the simulated engine whose prompt is known by its blocks' hashes alone."""

from __future__ import annotations

from actors.engines.block_pool import TIER, BlockPool
from actors.engines.engine import CacheStored
from actors.engines.known_prompt import KnownPrompt, answer_hash
from actors.engines.sequence import Sequence
from actors.engines.simulated_settings import SimulatedSettings
from core.generation import GenerateRequest, Output
from core.prompt import hashes_from_bytes


class KnownSequence(Sequence):
    """Blocks are named by the hashes, those that the answer fills by the request's id: nobody else finds these.

    Its answer is zeros, as many as it may have. The first is told when it is there, all others together at the end, so
    that a token costs nothing by itself. Nothing is in its blocks' memory that could be wrong.
    """

    __slots__ = ("_told",)

    def __init__(
        self,
        request: GenerateRequest,
        settings: SimulatedSettings,
        known: KnownPrompt,
        *,
        hold: bool = False,
        pull: bool = False,
    ) -> None:
        super().__init__(request, settings, known.tokens, hashes_from_bytes(known.hashes), hold=hold, pull=pull)
        self._told = 0

    def go_on(self) -> Output | None:
        """As of `Sequence`."""
        self.length += 1
        first = self.length == self.prompt_tokens + 1
        finish = "length" if self.length >= self.tokens_max else None
        if not first and finish is None:
            return None
        return Output(tokens=self.untold(), finish=finish, cached_tokens=self.cached_tokens if first else None)

    def untold(self) -> tuple[int, ...]:
        """As of `Sequence`; they are told by this."""
        made = self.length - self.prompt_tokens
        tokens, self._told = (0,) * (made - self._told), made
        return tokens

    def skip(self, tokens: int, pool: BlockPool) -> None:
        """It has so many tokens more, and all are computed; there must be blocks for them."""
        self.length += tokens
        fits = self.reserve(self.length, pool)
        assert fits
        self.compute(self.length, pool)

    def _judge(self) -> None:
        pass

    def _write(self, before: int) -> None:
        pass

    def _stored(self, first: int, full: int) -> CacheStored:
        names = self.names
        while len(names) < full:
            names.append(answer_hash(self.request.id, len(names)))
        parent = names[first - 1] if first else None
        return CacheStored(tuple(names[first:full]), parent, (), self.size, TIER, None, None, indexable=True)
