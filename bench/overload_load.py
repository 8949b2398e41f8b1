"""Clients for `bench.overload`: several tenants, each with an open loop of requests at its own rate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import NamedTuple

import httpx

MODEL = "tiny"
VOCAB = (16, 4096)
PROMPT_TOKENS = 64
ANSWER_TOKENS = 20
GIVE_UP_S = 30.0
"""A request without an answer for so long is an error."""


class RequestResult(NamedTuple):
    """The result of one request, as its client saw it."""

    tenant: str
    status: int
    """Status of the answer; 0 if there was none."""
    seconds: float
    ended_s: float
    """Time of the end, by `time.monotonic`."""
    retry_after: bool
    """The answer refused it, with a time to try again."""
    failure: str = ""


class Phase(NamedTuple):
    """All requests of one period at one rate."""

    seconds: float
    """Length of the period in which they were sent."""
    until_s: float
    """End of that period, by `time.monotonic`; some requests ended later."""
    results: list[RequestResult]

    def good(self, slo_s: float, tenant: str | None = None) -> list[RequestResult]:
        """Results of requests that were answered in time."""
        mine = self.results if tenant is None else self.of(tenant)
        return [each for each in mine if each.status == 200 and each.seconds <= slo_s]

    def goodput(self, slo_s: float) -> float:
        """Answers in time, per second: of those that ended while requests were still sent, and not at the beginning,
        when the first ones are still under way."""
        counted_s = self.seconds - min(slo_s, self.seconds / 2)
        good = self.good(slo_s)
        return sum(self.until_s - counted_s < each.ended_s <= self.until_s for each in good) / counted_s

    def of(self, tenant: str) -> list[RequestResult]:
        """Results of one tenant."""
        return [each for each in self.results if each.tenant == tenant]

    @property
    def refused(self) -> list[RequestResult]:
        """Results of requests that were refused with a time to try again."""
        return [each for each in self.results if each.status in {429, 503} and each.retry_after]

    @property
    def failed(self) -> list[RequestResult]:
        """Results of requests that failed in any other way."""
        return [each for each in self.results if each.status != 200 and each not in self.refused]


def percentile(values: Iterable[float], percent: int) -> float:
    """Nearest rank; 0 of none."""
    found = sorted(values)
    return found[min(len(found) - 1, len(found) * percent // 100)] if found else 0.0


async def answered_per_s(http: httpx.AsyncClient, at_once: int, seconds: float) -> float:
    """Requests that the deployment completes per second, with `at_once` always in flight."""
    rng, ends = random.Random(0), list[float]()
    until_s = time.monotonic() + seconds

    async def again_and_again() -> None:
        while time.monotonic() < until_s:
            result = await _ask(http, rng, "calibration")
            if result.status == 200:
                ends.append(time.monotonic())

    await asyncio.gather(*(again_and_again() for _ in range(at_once)))
    first, last = ends[at_once - 1], max(end for end in ends if end <= until_s)  # the first ones began all at once
    return sum(first < end <= last for end in ends) / (last - first)


async def offered(http: httpx.AsyncClient, rates: dict[str, float], seconds: float, seed: int) -> Phase:
    """Each tenant sends at its own rate (per second), at random times, without waiting for earlier answers."""
    rng, tasks = random.Random(seed), list[asyncio.Task[RequestResult]]()
    total, started_s, at_s = sum(rates.values()), time.monotonic(), 0.0
    while (at_s := at_s + rng.expovariate(total)) < seconds:
        await asyncio.sleep(max(started_s + at_s - time.monotonic(), 0))
        (tenant,) = rng.choices(list(rates), list(rates.values()))
        tasks.append(asyncio.create_task(_ask(http, rng, tenant)))
    until_s = time.monotonic()
    return Phase(until_s - started_s, until_s, list(await asyncio.gather(*tasks)))


async def _ask(http: httpx.AsyncClient, rng: random.Random, tenant: str) -> RequestResult:
    tokens = [rng.randrange(*VOCAB) for _ in range(PROMPT_TOKENS)]
    body = {"model": MODEL, "prompt": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    started_s = time.monotonic()

    def result(status: int, failure: str, *, again: bool = False) -> RequestResult:
        ended_s = time.monotonic()
        return RequestResult(tenant, status, ended_s - started_s, ended_s, again, failure)

    try:
        answer = await http.post(
            "/v1/completions", json=body, headers={"x-contrail-tenant": tenant}, timeout=httpx.Timeout(GIVE_UP_S)
        )
    except httpx.HTTPError as error:
        return result(0, repr(error))
    failure = "" if answer.status_code == 200 else answer.text
    return result(answer.status_code, failure, again="retry-after" in answer.headers)
