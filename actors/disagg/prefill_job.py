"""PrefillJob: one prompt that a decode worker asked others to compute, from the request to its one end."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from actors.disagg.prefill_peers import PrefillConnection, PrefillPeer
from actors.transport.frames import JobPrompt
from core.events.jobs import PrefillCompleted
from core.generation import GenerateRequest
from core.ids import WorkerId, new_id
from core.kv_transfer import Expected, answer_digest


class Recompute(Exception):
    """What was asked for is of no use; `reason` is one of core.kv_transfer.RECOMPUTED."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.detail = detail


class PrefillAnswer(NamedTuple):
    """The blocks are there, and who holds them."""

    event: PrefillCompleted
    peer: PrefillPeer


class PrefillJob:
    """Who takes it, takes it alone, and loses it when its connection breaks: then it is to be had again."""

    def __init__(self, request: GenerateRequest, canonical: bytes, asked_ms: int, wait_ms: int) -> None:
        self.id = new_id()
        self.request = request
        self.canonical = canonical
        self.asked_ms = asked_ms
        """By our own monotonic clock, as all times of the job."""
        self.deadline_ms = asked_ms + wait_ms
        self.attempt = -1
        """The present claim; -1 before the first …"""
        self.claimed_ms = -1
        """… and when it came: what its taker promises counts from here, since it begins later."""
        self.taker: PrefillPeer | None = None
        self.over = False
        self.answered_ms = -1
        self.given: PrefillAnswer | None = None
        """The answer, once it is there, whether its blocks are of use or not."""
        self._answer: asyncio.Future[PrefillAnswer] = asyncio.get_running_loop().create_future()
        self._held: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<PrefillJob {self.id} of {self.request.id}, attempt {self.attempt}, {'over' if self.over else 'open'}>"

    @property
    def answered(self) -> bool:
        """Whether there is an answer, or will be none."""
        return self._answer.done()

    def claim(self, peer: PrefillPeer, now_ms: int) -> JobPrompt:
        """What the one who wants it is told; with a prompt in it the job is theirs."""
        if self.over or self.answered:
            return JobPrompt(job=self.id, why="over")
        if self.taker is not None:
            return JobPrompt(job=self.id, why="taken")
        self.taker = peer
        self.attempt += 1
        self.claimed_ms = now_ms
        return JobPrompt(job=self.id, attempt=self.attempt, request=self.request)

    def let_go(self) -> None:
        """Who had it has it no more: it is to be had again, unless it was answered."""
        self.taker = None

    def called(self, connection: PrefillConnection, worker: WorkerId) -> None:
        """Who has it, if that is who speaks over this connection, goes by this id now."""
        if self.taker is not None and self.taker.connection is connection:
            self.taker = self.taker._replace(worker=worker)
            if self.given is not None:
                self.given = self.given._replace(peer=self.taker)

    def expected(self, model: str, block_size: int, layout: str, prompt_tokens: int) -> Expected:
        """What the present attempt's answer must say."""
        return Expected(answer_digest(self.canonical, self.id, self.attempt), model, block_size, layout, prompt_tokens)

    def put(self, event: PrefillCompleted, now_ms: int) -> None:
        """The answer is there."""
        assert self.taker is not None
        self.answered_ms = now_ms
        self.given = PrefillAnswer(event, self.taker)
        self._answer.set_result(self.given)

    def fail(self, error: Recompute) -> None:
        """There will be none, or what there was is of no use any more."""
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # whoever waits hears of it; if nobody does, that is no defect
        self.confirmed(held=False)

    def confirmed(self, *, held: bool) -> None:
        """The holder's word on whether the blocks were held until now."""
        if not self._held.done():
            self._held.set_result(held)

    async def answer(self, timeout_s: float) -> PrefillAnswer:
        """The answer. TimeoutError if there is none so soon, Recompute if there will be none."""
        async with asyncio.timeout(max(0.0, timeout_s)):
            return await asyncio.shield(self._answer)

    async def held(self, timeout_s: float) -> bool:
        """Whether the blocks were held until the question; no word in time is no."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._held)
        except TimeoutError:
            return False
