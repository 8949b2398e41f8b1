"""A log made by hand in which prefills last as TRUE says, under learned lines that are right or wrong."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from core.events import BlocksStored, RequestFinished, RequestPrefilled
from core.events.request_stages import RequestStages
from core.events.routing import PROGRESS_VERSION
from core.generation import PrefillReport
from core.prompt import Prompt
from projections.policy.prefill_time import PrefillTime
from replay.explain.price_check import PriceCheck, check_prices
from tests.projections.facts import prompt
from tests.replay.staged import KV, A, Stage

TRUE = PrefillTime(2_000, 20_000)
"""20 us a token, as the engines of this log take."""
WRONG = PrefillTime(2_000, 571_000)
LOW = PrefillTime(0, 500)
REMOTE = PrefillReport(remote=True, reason="", uncached_tokens=9, queued=0, workers=1, min_tokens=1, queue_max=8)


class PricedStage:
    """Two workers and requests one after the other, each with a prompt of its own."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.pair()
        self.stage.replica()
        self.count = 0

    def prompt(self, blocks: int) -> Prompt:
        self.count += 1
        return prompt(*(1000 * self.count + block for block in range(blocks)))

    def ask(
        self,
        line: PrefillTime | None,
        blocks: int = 0,
        *,
        us: int = -1,
        staged: bool = True,
        remote: bool = False,
        model: str = "tiny",
    ) -> str:
        """One request under that line, of 25 to 125 blocks of 4 tokens; its prefill takes as long as TRUE says."""
        asked = self.prompt(blocks or 25 * (self.count % 5 + 1))
        name, us = f"r{self.count}", TRUE.us(asked.tokens) if us < 0 else us
        self.stage.clock.advance(1_000)
        self.stage.tell(self.stage.decided(name, asked, model=model, time=line))
        self.stage.clock.advance(us // 1000 + 3)
        self.answer(name, asked, us, staged=staged, remote=remote)
        return name

    def answer(self, name: str, asked: Prompt, us: int, *, staged: bool = True, remote: bool = False) -> None:
        """First token and end."""
        stages = RequestStages(link=30, prefill=us // 100, decode=100)
        self.stage.tell(
            RequestPrefilled(
                request=name, attempt=0, cached_tokens=0, ttft_ms=us // 1000, v=PROGRESS_VERSION,
                prefill=REMOTE if remote else None,
            ),
            RequestFinished(
                request=name, attempt=0, outcome="stop", prompt_tokens=asked.tokens, output_tokens=9, cached_tokens=0,
                ttft_ms=us // 1000, duration_ms=us // 1000 + 10, v=PROGRESS_VERSION, stages=stages if staged else (),
            ),
        )  # fmt: skip

    def checked(self, folder: Path, start: int = 1) -> list[PriceCheck]:
        with self.stage.recording(folder / "log") as recording:
            return check_prices(recording, start)

    def only(self, folder: Path) -> PriceCheck:
        (found,) = self.checked(folder)
        return found

    def wait_behind_long_prompts(self) -> None:
        """A worker still computes a long prompt when a request comes that shares a little with its cache. By LOW that
        prompt seems done, so the request waits there; by TRUE it goes to the other worker. Twenty times, and each time
        one more request comes alone."""
        shared = prompt(*range(1, 26))
        self.stage.say(KV, A, BlocksStored(hashes=shared.hashes()))
        for number in range(20):
            self.ask(LOW, 150 + 5 * number)
            own = 10_000 * (number + 1)
            long, short = self.prompt(250), prompt(*range(1, 26), *range(own, own + 200))
            self.stage.clock.advance(1_000)
            self.stage.tell(replace(self.stage.decided(f"long-{number}", long, time=LOW), worker=A))
            self.stage.clock.advance(16)
            event = self.stage.decided(f"short-{number}", short, time=LOW)
            assert event.worker == A
            self.stage.tell(event)
            self.stage.clock.advance(6)
            self.answer(f"long-{number}", long, TRUE.us(1001))
            self.stage.clock.advance(20)
            self.answer(f"short-{number}", short, TRUE.us(1001 + 901))
