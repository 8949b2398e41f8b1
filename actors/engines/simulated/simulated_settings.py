"""Settings of a simulated engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from core.errors import CallerError, did_you_mean
from core.generation import TASK_EMBED

PORT_MAX = 65535
LINEAR = "linear"
MOCKER = "mocker"
TIMINGS = (LINEAR, MOCKER)
ABOVE_ZERO = (
    "block_size",
    "capacity_blocks",
    "max_seqs",
    "batched_tokens_max",
    "decode_us_per_step",
    "time_scale",
    "keep_ms",
    "block_bytes",
    "embedding_dimensions",
)
NOT_BELOW_ZERO = (
    "prefill_us_per_token",
    "prefill_us_per_pass",
    "decode_us_per_context_token",
    "token_min",
    "eos_token",
    "eos_every",
    "transfer_us_per_block",
    "host_blocks",
    "host_us_per_block",
    "disk_blocks",
    "disk_us_per_block",
    "fetch_mb_per_s",
    "fetch_us",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CannedReply:
    """A text to answer with where a conversation has come to a certain point."""

    when: str
    """A text in the prompt; of several replies whose text is in it, the one whose text ends last is given."""
    say: str

    def __post_init__(self) -> None:
        if not self.when:
            raise ValueError("when: name a text of the prompt; a reply to any prompt is a plain text")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    """One kind of engine: its cache, its limits and its speed. The speeds are those of no real machine."""

    block_size: int = 32
    """Tokens per block."""
    capacity_blocks: int = 1024
    """Blocks in the cache."""
    context_max: int = 4096
    """Longest prompt with answer, in tokens."""
    max_seqs: int = 32
    """Requests that run at once; the others wait."""
    prefill_us_per_token: float = 50
    """Simulated microseconds to compute one prompt token that is not in the cache."""
    prefill_us_per_pass: int = 0
    """The same once more for each pass that computes any of them."""
    decode_us_per_step: int = 5000
    """Simulated microseconds for one more token of every running request."""
    decode_us_per_context_token: float = 0
    """The same once more for each token that those have so far, all together."""
    batched_tokens_max: int = 8192
    """Tokens computed in one pass, those of prompts and one for each request that decodes."""
    timing: str = LINEAR
    """The model of a pass's duration: `linear` by the two speeds above, `mocker` as Dynamo's mock engine."""
    vocab: int = 4096
    """Token ids are below this."""
    token_min: int = 16
    """Ids below this are never made, save eos_token: they are special in most vocabularies."""
    eos_token: int = 2
    """Ends an answer."""
    eos_every: int = 1024
    """One token in so many is eos_token; 0 for none."""
    model_path: str = ""
    """Folder with the tokenizer that clients' text goes through; empty if they send token ids."""
    time_scale: float = 1.0
    """Simulated seconds per second."""
    kv_events: bool = True
    """True if changes of the cache are reported. Without reports, only the policy `approximate` can guess the cache, by
    the requests that were sent here."""
    transfer: bool = False
    """True if blocks can be moved to and from other engines."""
    keep_ms: int = 30_000
    """Time that a prompt's blocks are held for others after it was computed; milliseconds of the clock, not simulated
    ones, because others count them too."""
    transfer_us_per_block: int = 100
    """Simulated microseconds to fetch a block from another engine."""
    host_blocks: int = 0
    """Blocks in the host's memory behind the cache; 0 for no host tier."""
    host_us_per_block: int = 100
    """Simulated microseconds to load a block from there; other requests go on meanwhile."""
    disk_blocks: int = 0
    """Blocks on a disk of the worker's own behind the host; 0 for none. Only `contrail simulate` has disks."""
    disk_us_per_block: int = 1000
    """Simulated microseconds to read a block from there, or to write it."""
    fetch_mb_per_s: int = 0
    """Speed at which starts of prompts are fetched from the hosts of other engines, in `contrail simulate` alone; 0 for
    no fetches."""
    fetch_us: int = 10_000
    """Simulated microseconds that a fetch takes beside that."""
    side_channel_host: str = "127.0.0.1"
    """The address of the side channel, for other engines' pulls."""
    side_channel_port: int = 0
    """0 is a free one."""
    block_bytes: int = 131_072
    """The bytes that a block counts for."""
    embedding_dimensions: int = 64
    """Numbers in an embedding."""
    replies: tuple[str | CannedReply, ...] = ()
    """Texts to answer with instead of made-up tokens; they need model_path with a tokenizer. A `{when, say}` is given
    where its `when` is in the prompt; where none is, one of the plain texts is, chosen by the prompt's hash."""

    def __post_init__(self) -> None:
        for name in ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise CallerError(f"engine_args: {name} must be above 0, not {getattr(self, name)}")
        for name in NOT_BELOW_ZERO:
            if not 0 <= getattr(self, name) < math.inf:  # false for nan, too
                raise CallerError(f"engine_args: {name} must not be negative, but is {getattr(self, name)}")
        if self.timing not in TIMINGS:
            raise CallerError(f"engine_args: timing must be one of {', '.join(TIMINGS)}, not {self.timing}")
        if not 0 <= self.side_channel_port <= PORT_MAX:
            raise CallerError(
                f"engine_args: side_channel_port must be 0 to {PORT_MAX}, but is {self.side_channel_port}"
            )
        if self.context_max < 2:
            raise CallerError(f"engine_args: context_max must hold a prompt and an answer, not {self.context_max}")
        if self.vocab <= self.token_min:
            raise CallerError(f"engine_args: vocab ({self.vocab}) must be above token_min ({self.token_min})")
        self._check_together()

    def _check_together(self) -> None:
        if self.host_blocks and self.transfer:
            raise CallerError("engine_args: host_blocks and transfer do not go together yet: leave one of them out")
        if self.disk_blocks and not self.host_blocks:
            raise CallerError("engine_args: what is read from the disk goes through the host: give host_blocks, too")
        if self.fetch_mb_per_s and not self.host_blocks:
            raise CallerError("engine_args: blocks are fetched into a host, and from one: give host_blocks, too")
        if self.replies and not self.model_path:
            raise CallerError("engine_args: replies are texts, which need model_path, a folder with tokenizer.json")

    def tokens_max(self, task: str) -> int:
        """Tokens of prompt and answer together; what is embedded needs no room for an answer."""
        return self.context_max + (task == TASK_EMBED)

    def fetch_time_us(self, blocks: int) -> int:
        """Time in which so many blocks come from another engine."""
        return self.fetch_us + blocks * self.block_bytes // self.fetch_mb_per_s  # MB a second: bytes in a us

    def layout(self, model: str) -> str:
        """Blocks of engines of an equal layout and block size mean the same."""
        return f"simulated/{self.vocab}/{model}"

    @classmethod
    def parse(cls, engine_args: Mapping[str, Any]) -> Self:
        """The settings named, the others at their defaults; numbers may be text. CallerError names what is wrong."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(engine_args) - set(known))
        if unknown:
            there = did_you_mean(unknown[0], known) or f"; it knows {', '.join(known)}"
            raise CallerError(f"engine_args: the simulated engine does not know {', '.join(unknown)}{there}")
        try:
            return msgspec.convert(dict(engine_args), cls, strict=False)
        except msgspec.ValidationError as error:
            raise CallerError(f"engine_args: {error}") from error


def mocker_settings(block_size: int = 64, capacity_blocks: int = 16384) -> SimulatedSettings:
    """Dynamo's mock engine at its defaults, as its offline replay runs it (ai-dynamo 1.6.1)."""
    return SimulatedSettings(
        block_size=block_size,
        capacity_blocks=capacity_blocks,
        context_max=block_size * capacity_blocks,
        max_seqs=256,
        batched_tokens_max=8192,
        eos_every=0,
        timing=MOCKER,
    )
