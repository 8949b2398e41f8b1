"""One request inside the simulated engine: its blocks, how much of it is computed, and when it ends.

Of a prompt as traces have them only the length and the hashes of its blocks are known: `BlockHashPrompt`, and
`BlockHashSequence` for the request that has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import xxhash

from actors.engines.engine import CacheStored, TierLoads
from actors.engines.simulated.block_pool import TIER, BlockPool, PoolBlock
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.generation import GenerateRequest, Output
from core.ids import RequestId
from core.prompt import hashes_from_bytes

_ANSWER_SEED = 0x72


class BlockHashPrompt(NamedTuple):
    """A prompt known only by hashes; its `GenerateRequest` has no tokens."""

    tokens: int
    """The number of tokens."""
    hashes: bytes
    """Of each full block, in the engine's block size: uint64, little-endian; equal hash, equal prefix."""


def answer_hash(request: RequestId, place: int) -> int:
    """Hash of the block at this place that tokens of the answer fill: no other prompt has it."""
    hashed: int = xxhash.xxh3_64_intdigest(f"{request}/{place}".encode(), _ANSWER_SEED)
    return hashed


class EngineSequence(ABC):
    """The scheduler's view of a request; the subclasses know the prompt's content."""

    __slots__ = (
        "arrived_us",
        "asks_disk",
        "began_us",
        "blocks",
        "cached_tokens",
        "computed",
        "contents",
        "decode_from",
        "fetchable",
        "hold",
        "length",
        "load_began_us",
        "loads",
        "nameless",
        "names",
        "prompt_tokens",
        "pull",
        "read_blocks",
        "read_to",
        "request",
        "size",
        "thrown_out",
        "tokens_max",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        settings: SimulatedSettings,
        prompt_tokens: int,
        names: list[int],
        *,
        hold: bool,
        pull: bool,
    ) -> None:
        self.request = request
        self.hold = hold
        """Its prompt is computed for others, and no answer is wanted."""
        self.pull = pull
        """Its prompt's blocks come from elsewhere, and have not come yet."""
        self.contents: tuple[int, ...] = ()
        """Fetched contents, or those from the host, on the way into the request's blocks."""
        self.loads: dict[str, TierLoads] = {}
        """Blocks that come from one slower tier, and their time …"""
        self.load_began_us = 0
        """… from then on."""
        self.fetchable = 0
        """Leading blocks of the prompt that another engine's host has; 0 once they were fetched."""
        self.size = settings.block_size
        self.prompt_tokens = prompt_tokens
        self.length = prompt_tokens
        """Tokens of prompt and answer so far."""
        self.tokens_max = min(prompt_tokens + request.sampling.max_tokens, settings.tokens_max(request.task))
        """When it has so many, it is finished."""
        self.blocks: list[PoolBlock] = []
        self.cached_tokens = 0
        """Prompt tokens that were found in the cache when it came in."""
        self.computed = 0
        """Tokens whose cache entries are in its blocks, when the pass that is under way ends."""
        self.decode_from = prompt_tokens
        """Tokens from here on are computed in decode steps."""
        self.nameless = False
        """Blocks that the request fills are found by no other request."""
        self.arrived_us = 0
        """When the engine got it …"""
        self.began_us = 0
        """… and when the first pass with a part of it began."""
        self.thrown_out = 0
        """The number of times that the request lost its blocks to others."""
        self.asks_disk = True
        """Its blocks are looked up on the disk before it is let in."""
        self.read_blocks = self.read_to = 0
        """The number of blocks that were read from the disk for it, and the depth of the last one; each is read
        once."""
        self.names = names
        """Of its full blocks, as far as they are known: the prompt's, and those that the answer has filled."""

    def __repr__(self) -> str:
        tokens = f"{self.prompt_tokens} + {self.length - self.prompt_tokens} tokens"
        return f"<{type(self).__name__} {self.request.id} of {tokens}, {len(self.blocks)} blocks>"

    @property
    def names_reusable(self) -> list[int]:
        """Names of the blocks that may come from the cache: its last token is always computed."""
        return self.names[: (self.length - 1) // self.size]

    @property
    def steps_quietly(self) -> bool:
        """Its next decode step neither begins a block nor fills one: nothing happens but a token."""
        return self.computed == self.length - 1 >= self.prompt_tokens and self.length % self.size > 1

    @property
    def blocks_to_fetch(self) -> int:
        """Blocks of the prompt, the last one partly filled, that were not found in the cache."""
        return len(self.blocks) - self.cached_tokens // self.size

    @property
    def blocks_known(self) -> int:
        """Blocks that its tokens so far fill or begin."""
        return -(-self.length // self.size)

    def settle_in(self, found: list[PoolBlock], pool: BlockPool) -> None:
        """The blocks found are its own too."""
        pool.share(found)
        self.blocks = found
        self.computed = len(found) * self.size
        if not self.thrown_out:
            self.cached_tokens = self.computed
        self._judge()

    def reserve(self, until: int, pool: BlockPool) -> bool:
        """True if the request has blocks for so many tokens; else it has no more than before."""
        lacking = -(-until // self.size) - len(self.blocks)
        if lacking > 0:
            if lacking > pool.free:
                return False
            self.blocks += pool.take(lacking)
        return True

    def compute(self, until: int, pool: BlockPool) -> None:
        """So many tokens are in its blocks, and blocks that got full are stored in the cache."""
        before, self.computed = self.computed, until
        self._write(before)
        if until // self.size > before // self.size:
            self._store(before // self.size, pool)

    def fill_in(self, pool: BlockPool) -> None:
        """Fetched contents are in the blocks, unchecked; all but the prompt's last token count as computed."""
        first = self.cached_tokens // self.size
        for block, content in zip(self.blocks[first:], self.contents, strict=True):
            block.content = content
        self.computed = self.decode_from = self.prompt_tokens - 1
        self.pull = False
        self._judge()
        if self.computed // self.size > first:
            self._store(first, pool)

    def load_in(self, pool: BlockPool) -> None:
        """The contents from the host are in the blocks behind those that are computed, and count as computed."""
        first = self.computed // self.size
        for block, content in zip(self.blocks[first : first + len(self.contents)], self.contents, strict=True):
            block.content = content
        self.computed += len(self.contents) * self.size
        self.contents = ()
        if not self.thrown_out:
            self.cached_tokens = self.computed
        self._judge()
        self._store(first, pool)

    def throw_out(self, pool: BlockPool) -> None:
        """Its blocks are free, and it is to be computed anew, with the answer so far as if that were prompt."""
        pool.release(self.blocks)
        self.blocks = []
        self.computed = 0
        self.decode_from = self.prompt_tokens
        self.nameless = False
        self.thrown_out += 1

    @abstractmethod
    def go_on(self) -> Output | None:
        """All its tokens are computed, and it has the next one: this, which may be its last; None if it is told later,
        with others."""

    @abstractmethod
    def untold(self) -> tuple[int, ...]:
        """Tokens that it has and has not told."""

    @abstractmethod
    def _judge(self) -> None:
        """True if the blocks hold the contents that the computed tokens make."""

    @abstractmethod
    def _write(self, before: int) -> None:
        """Its blocks hold what was computed from that token on, on top of what they held before."""

    @abstractmethod
    def _stored(self, first: int, full: int) -> CacheStored:
        """Blocks `first` to `full` as others are told of them; their names are known from now on."""

    def _store(self, first: int, pool: BlockPool) -> None:
        full = self.computed // self.size
        stored = self._stored(first, full)
        if not self.nameless:
            pool.store(self.blocks[first:full], stored.blocks, stored)


class BlockHashSequence(EngineSequence):
    """Blocks are named by the hashes, those that the answer fills by the request's id: no other request finds these.

    Its answer is zeros, as many as it may have. The first is told when it is there, all others together at the end, so
    that a token costs nothing by itself. Nothing is in its blocks' memory that could be wrong.
    """

    __slots__ = ("_delivered",)

    def __init__(
        self,
        request: GenerateRequest,
        settings: SimulatedSettings,
        known: BlockHashPrompt,
        *,
        hold: bool = False,
        pull: bool = False,
    ) -> None:
        super().__init__(request, settings, known.tokens, hashes_from_bytes(known.hashes), hold=hold, pull=pull)
        self._delivered = 0

    def go_on(self) -> Output | None:
        """As of `EngineSequence`."""
        self.length += 1
        first = self.length == self.prompt_tokens + 1
        finish = "length" if self.length >= self.tokens_max else None
        if not first and finish is None:
            return None
        return Output(tokens=self.untold(), finish=finish, cached_tokens=self.cached_tokens if first else None)

    def untold(self) -> tuple[int, ...]:
        """As of `EngineSequence`; they are told by this."""
        made = self.length - self.prompt_tokens
        tokens, self._delivered = (0,) * (made - self._delivered), made
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
