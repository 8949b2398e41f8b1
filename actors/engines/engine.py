"""Engine: the interface of an engine to its worker: tokens in, tokens out, and the truth about its cache.

Two implementations: `actors.engines.vllm.vllm_engine` and `actors.engines.simulated.simulated_engine`;
`tests/contracts/engine.py` holds both to it. Both bound the logprobs of a prompt (`check_prompt_logprobs`): they come
in one piece, and are made, sent and read on event loops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from actors.engines.engine_adapters import EngineAdapters
from actors.kv_blocks.pool_folder import PoolDescription
from core.errors import CallerError, PeerError
from core.generation import GenerateRequest, Output
from core.kv_transfer import FetchAddress, KvAddress, KvBlocks, KvPull
from core.prompt import TOKEN_BYTES


class TierLoads(NamedTuple):
    """Sums of an engine's loads from a slower tier to the next one above it."""

    blocks: int
    us: int
    """Time of each load from its begin to its last block, all together."""


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
    slots: int = 32
    """Requests that it runs at once; more wait."""
    cpu_s: Callable[[], float] | None = None
    """The CPU seconds of the engine's processes, if it computes on the CPU; None if not, or if unknown."""
    embedding_size: int = 0
    """Numbers in an embedding; 0 if the engine makes none, or does not know."""
    disk_counts: Callable[[], Mapping[str, int]] | None = None
    """The numbers of its disk tier (`actors.kv_blocks.disk_counts`); None if it has none. Reads a small file."""
    group: str = ""
    """A name that the data-parallel ranks of one server share; empty of an engine alone."""
    server: str = ""
    """The URL of the running server that is the engine, to which others may send requests, too; empty of an engine of
    ours."""
    rank: int | None = None
    """The rank that is the engine, of a server that has several; None else."""
    pool: PoolDescription | None = None
    """The pool of its disk tier; None if it has none, or one whose blocks cannot be announced."""
    fetch: FetchAddress | None = None
    """The address at which other engines fetch blocks of its host tier; None if they do not, nor it theirs."""
    assumed: bool = False
    """True if its cache changes are assumed from the prompts that it was sent, because it reports none."""
    tier_loads: Callable[[], Mapping[str, TierLoads]] | None = None
    """The blocks that it loaded from slower tiers since its start, by tier; None if it has none. May read a small
    file."""


class EngineLoad(NamedTuple):
    """The engine's own numbers now."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    steps: int = 0
    """Steps that it has ended, as far as it counts them: an engine that makes steps does not hang."""


class CacheStored(NamedTuple):
    """Blocks entered the cache, each behind the one before it."""

    blocks: tuple[int, ...]
    """The engine's own names of them; equal content has an equal name, and may be stored several times."""
    parent: int | None
    """The engine's name of the block before the first; None at the start of a prompt."""
    tokens: Sequence[int]
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


class CacheCopied(NamedTuple):
    """Each of these blocks has one copy more in that tier. Their content is what the engine said of these names in
    `CacheStored`, and unknown until it does."""

    blocks: tuple[int, ...]
    tier: str


class CacheEmptied(NamedTuple):
    """All blocks left the cache."""


class CacheGap(NamedTuple):
    """Events were missed and cannot be read again: the content of the cache is unknown."""

    detail: str


CacheChange = CacheStored | CacheCopied | CacheRemoved | CacheEmptied | CacheGap


class TransferFailed(PeerError):
    """Blocks could not be pulled; nothing of them is in the cache, and no token was made."""


class TransferTotals(NamedTuple):
    """The engine's own counters of moved blocks, since it started."""

    pulls: int = 0
    """Requests with blocks that were fetched."""
    blocks: int = 0
    bytes: int = 0
    failures: int = 0
    expired: int = 0
    """Prefills with blocks that were not fetched in time."""
    held: int = 0
    """Requests with blocks that are held for others right now."""


class BlockTransfer(Protocol):
    """An engine's side that moves KV blocks; what it cannot check is checked by `actors.disagg`."""

    address: KvAddress
    """The address of the engine's blocks for pulls; known once the engine is up."""
    keep_ms: int
    """The time that blocks are held for others after their prefill ended."""

    async def prefill(self, request: GenerateRequest) -> tuple[KvBlocks, int]:
        """The prompt's blocks, held from now on for `keep_ms`, and how many tokens came from the cache. Cancelled,
        nothing is held. Errors as of `generate`."""

    def still_held(self, blocks: KvBlocks) -> bool:
        """True if the blocks were held without a break until now, by this side's own clock and with a margin."""

    async def release(self, blocks: KvBlocks) -> None:
        """The blocks will not be pulled: they are free now, or at the latest when `keep_ms` is over."""

    async def decline(self, pull: KvPull) -> None:
        """The puller's side of the same: their holder is told that we will not fetch them, if it can be reached."""

    async def confirm(self, pull: KvPull) -> None:
        """The blocks of this pull are right, or none of them is in the cache: from now on they may be copied to slower
        tiers. Before, none is, nor one that was computed behind them."""

    async def forget(self) -> None:
        """Nothing that is in the cache now will be found by requests to come; those that run go on correctly."""

    def totals(self) -> TransferTotals:
        """No I/O."""


class Engine(Protocol):
    """All methods are called on the event loop; none blocks it."""

    info: EngineInfo
    transfer: BlockTransfer | None
    """None if it was not made to move blocks."""
    adapters: EngineAdapters | None
    """None if it was not made to serve adapters. Those that it was given are served once it is up."""

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        """The engine serves; `info` is set. `on_cache` is called for every change of its cache from the first on."""

    def generate(self, request: GenerateRequest, pull: KvPull | None = None) -> AsyncIterator[Output]:
        """New tokens as they come, the last Output with `finish`. Closing the iterator aborts within a step.

        With `pull` the prompt's blocks are fetched from another engine instead of being computed, as far as this one's
        cache lacks them; what is fetched is taken as it comes. Not for requests that want logprobs of the prompt, nor
        for embeddings: these are no part of blocks.

        Logprobs, where asked for, come with their tokens, as many as these in each Output; those of the prompt with the
        first ones, and then the engine may leave its cache unread. They are of the model itself, or of what the
        sampling left of it: the engine's own settings say which. A guided answer ends when it is whole, unless it may
        not end yet. For an embedding one Output comes, with `finish` `stop`; an engine may serve one task alone.

        A request for an adapter names it by its id, and gets Unavailable if the adapter is not served here any more.
        From tiers that it names in `skip_tiers` nothing is loaded, nor from those behind the host if that is one.

        CallerError if the engine cannot take this request, for any reason (a guided one perhaps only after
        tokens: none is left that fits); it goes on with the others. EngineDead if the engine is gone; TransferFailed.
        """

    def load(self) -> EngineLoad:
        """The newest numbers that are known; no I/O."""

    async def check(self) -> None:
        """Returns if the engine is alive, else raises EngineDead with the reason."""

    async def settle(self) -> None:
        """Every cache change that the engine had made before the call has been told to `on_cache` (best effort)."""

    async def stop(self) -> None:
        """The engine's processes are gone."""


PROMPT_LOGPROBS_MAX = 131_072
"""Of one prompt, all its tokens' together: reading so many takes 20 to 60 ms of an event loop."""


def check_prompt_logprobs(request: GenerateRequest) -> None:
    """Returns if what is asked of the prompt's logprobs can be told, else raises CallerError."""
    each = request.sampling.prompt_logprobs + 1
    tokens = len(request.tokens) // TOKEN_BYTES
    if each * tokens > PROMPT_LOGPROBS_MAX:
        raise CallerError(
            f"{each} logprobs for each of the prompt's {tokens} tokens are more than {PROMPT_LOGPROBS_MAX}: "
            "ask for fewer, or send a shorter prompt"
        )
