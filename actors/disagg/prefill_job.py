"""PrefillJob: one request of a decode worker, with the job that it may become: asked for, claimed, answered, pulled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from actors.disagg.prefill_peers import PrefillPeer
from actors.transport.frames import JobPrompt
from core.errors import ContrailError
from core.events.jobs import JobEvent, PrefillCompleted
from core.generation import GenerateRequest, Hint, PrefillReport
from core.kv_transfer import Expected, KvPull, answer_digest
from core.prompt import Prompt, scope_bytes


class PublishJob(NamedTuple):
    """A command: the event goes to the worker's own chain of the jobs stream."""

    event: JobEvent


class JobPhase(Enum):
    """The state of a request. From ASKED to FORGETTING it has an open job."""

    WAITING = "waiting"
    """For blocks that are fetched for other requests."""
    ASKED = "asked"
    """No prefill worker has answered."""
    READY = "ready"
    """The answer is here; the pull waits for a slot in the engine."""
    PULLING = "pulling"
    """The engine fetches the blocks and has made no token."""
    CONFIRMING = "confirming"
    """The first tokens are here; the holder has not said yet that it held the blocks."""
    SETTLING = "settling"
    """The pull was given up; its blocks may be in the cache."""
    REASKING = "reasking"
    """Blocks of a pull that was given up are in the cache; their holder is asked whether they are right."""
    FORGETTING = "forgetting"
    """They may be wrong: the cache is being forgotten."""
    SERVED = "served"
    """The engine computes the prompt, or its tokens leave."""


@dataclass(slots=True, eq=False)
class PrefillJob:
    """All that a decode worker knows of it. Times are microseconds of its own monotonic clock."""

    id: str
    request: GenerateRequest
    prompt: Prompt
    hint: Hint
    phase: JobPhase = JobPhase.WAITING
    report: PrefillReport | None = None
    """The verdict and its inputs; None before, and for a prompt that blocks cannot answer."""
    depth: int = 0
    """Blocks that the cache had at the verdict: the first block in doubt is the one behind them."""
    asked_us: int = 0
    deadline_us: int = 0
    attempt: int = -1
    """The present claim, from 0."""
    claimed_us: int = 0
    """When it came: the holder's promise counts from here, since it begins later."""
    taker: PrefillPeer | None = None
    """The prefill worker that has the job; after its answer, the holder of the blocks."""
    answered_us: int = 0
    answer: PrefillCompleted | None = None
    until_us: int = 0
    """The blocks are of no use after this time."""
    begun: bool = False
    """The engine was asked to pull."""
    pull_depth: int = 0
    """Blocks that the cache had when the pull began."""
    cached_tokens: int = 0
    """As the engine says with its first tokens."""
    held: bool | None = None
    """The holder's word on whether the blocks were held; None before it."""
    failure: tuple[str, str] = ("", "")
    """Reason and detail of a pull that was given up."""
    error: ContrailError | None = None
    """The engine's error that ends the request."""
    client_gone: bool = False

    def __repr__(self) -> str:
        return f"<PrefillJob {self.id} of {self.request.id}, attempt {self.attempt}, {self.phase.value}>"

    @property
    def canonical(self) -> bytes:
        """The prompt's canonical bytes."""
        return scope_bytes(self.request.adapter, self.request.cache_salt) + self.request.tokens

    @property
    def pull(self) -> KvPull:
        """The address and blocks for the engine to pull, from the answer."""
        assert self.answer is not None
        assert self.taker is not None
        return KvPull(self.taker.address, self.answer.blocks)

    def claim(self, peer: PrefillPeer, now_us: int) -> JobPrompt:
        """The answer to a claim; with a prompt in it the job is the peer's."""
        if self.phase is not JobPhase.ASKED:
            return JobPrompt(job=self.id, why="over")
        if self.taker is not None:
            return JobPrompt(job=self.id, why="taken")
        self.taker, self.attempt, self.claimed_us = peer, self.attempt + 1, now_us
        return JobPrompt(job=self.id, attempt=self.attempt, request=self.request)

    def expected(self, model: str, block_size: int, layout: str) -> Expected:
        """The values that the present attempt's answer must have."""
        digest = answer_digest(self.canonical, self.id, self.attempt)
        return Expected(digest, model, block_size, layout, self.prompt.tokens)


class UnverifiedBlocks:
    """Blocks that are being fetched and not yet known to be right, by job: the first block fetched for each.

    Blocks that were pulled too late or from the wrong place look like any others, and stay in the cache under the
    names of right ones. A request with the same prefix would use them before the holder confirms that they were held.
    So it waits, and then finds them in the cache, or computes them.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int]] = {}
        """Depth (from 1) and key of the block."""

    def __repr__(self) -> str:
        return f"<UnverifiedBlocks of {len(self._first)} jobs>"

    def add(self, job: str, prompt: Prompt, depth: int) -> None:
        """The prompt's blocks from that depth on (from 1) are not to be built on. A partial block has no key."""
        if depth <= prompt.blocks:
            self._first[job] = (depth, prompt.key(depth))

    def remove(self, job: str) -> None:
        """The job's blocks are right, or gone from the cache."""
        self._first.pop(job, None)

    def block(self, prompt: Prompt) -> bool:
        """True if the prompt builds on an unverified block. O(jobs)."""
        return any(prompt.blocks >= depth and prompt.key(depth) == key for depth, key in self._first.values())


def share_block(prompt: Prompt, other: Prompt, depth: int) -> bool:
    """True if the block at that depth (from 1) is the same in both prompts."""
    return prompt.blocks >= depth <= other.blocks and prompt.key(depth) == other.key(depth)
