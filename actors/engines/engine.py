"""What an engine is to a worker: tokens in, tokens out, and the truth about its cache.

Two implementations: `actors.engines.vllm` and `actors.engines.simulated`; `tests/contracts/engine.py` holds both to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

from core.generation import GenerateRequest, Output


class EngineInfo(NamedTuple):
    """Fixed once the engine is up."""

    engine: str
    """Name and version, as WorkerJoined shows it."""
    model: str
    """The name that clients ask for."""
    model_path: str
    """Folder with tokenizer and configuration; empty if there is none."""
    block_size: int
    capacity_blocks: int
    context_max: int


class EngineLoad(NamedTuple):
    """The engine's own numbers now."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int


class CacheStored(NamedTuple):
    """Blocks entered the cache, each behind the one before it."""

    blocks: tuple[int, ...]
    """The engine's own names of them; equal content has an equal name, and may be stored several times."""
    parent: int | None
    """The engine's name of the block before the first; None at the start of a prompt."""
    tokens: tuple[int, ...]
    """block_size * len(blocks) token ids; empty if the engine cannot say (then it is not indexed)."""
    block_size: int
    tier: str
    adapter: str | None
    cache_salt: str | None
    indexable: bool
    """False for blocks whose content is more than tokens, or of another kind than full attention."""


class CacheRemoved(NamedTuple):
    """One copy of each of these blocks left the cache, in this order."""

    blocks: tuple[int, ...]
    tier: str
    indexable: bool = True


class CacheEmptied(NamedTuple):
    """All blocks left the cache."""


class CacheGap(NamedTuple):
    """Events were missed that nobody can give back: what the cache holds is not known any more."""

    detail: str


CacheChange = CacheStored | CacheRemoved | CacheEmptied | CacheGap


class Engine(Protocol):
    """All methods are called on the event loop; none blocks it."""

    info: EngineInfo

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The engine serves; `info` is set. `on_cache` is called for every change of its cache from the first on."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        """New tokens as they come, the last Output with `finish`. Closing the iterator aborts within a step.

        CallerError if the engine cannot take this request; EngineDead if the engine is gone.
        """

    def load(self) -> EngineLoad:
        """The newest numbers that are known; no I/O."""

    async def check(self) -> None:
        """Returns if the engine is alive, else raises EngineDead with the reason."""

    async def settle(self) -> None:
        """Every cache change that the engine had made before the call has been told to `on_cache` (best effort)."""

    async def stop(self) -> None:
        """The engine's processes are gone."""
