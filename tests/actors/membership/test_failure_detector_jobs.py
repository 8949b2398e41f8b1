"""Who is found lost leaves nothing in the jobs stream either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.membership import failure_detector
from actors.router import liveness_monitor
from core.events import WorkerLost
from core.ids import StreamSeq, WorkerId, new_id
from core.subjects import JOBS, answered_token, asked_token, job_kind, subject
from tests.actors.membership.test_failure_detector import KV, append_as, looks, worker_id
from tests.actors.world import NAMESPACE, world
from tests.fixtures.eventually import eventually
from tests.projections.job_facts import asked, completed, started


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Observations come often, so that tests wait little."""
    monkeypatch.setattr(failure_detector, "OBSERVE_EVERY_S", 0.02)
    monkeypatch.setattr(liveness_monitor, "PING_TIMEOUT_S", 0.2)
    yield


def asks_here(worker: str) -> str:
    """Where a worker asks for the job of `tests.projections.job_facts`."""
    job = asked("a", 1)
    return asked_token(worker, job_kind(job.model, job.block_size))


async def test_the_end_of_its_jobs_is_written_too() -> None:
    """On the subject that it wrote to, asking or answering, once; a worker that never had a job has no end there."""
    async with world() as it:
        await it.log.ensure([JOBS])
        for name, token, event in (
            ("asks", asks_here, asked("a", 1)),
            ("answers", answered_token, started("a", 1)),
            ("neither", None, None),
        ):
            await it.worker(name)
            if token is not None and event is not None:
                await append_as(it, JOBS, worker_id(it, name), event, about=token(worker_id(it, name)))
        routers = [await it.router(f"frontend-{i}") for i in range(2)]
        for router in routers:
            await it.ready(router, 3)
            await eventually(lambda router=router: len(router.state.jobs.parts) == 2, "both speak")  # type: ignore[misc]
        dead = [await it.crash(name) for name in ("asks", "answers", "neither")]
        for worker in dead:
            it.store.expire(f"workers/{worker}")
        for router in routers:
            await eventually(lambda router=router: not router.state.jobs.parts, "the end of their jobs")  # type: ignore[misc]
            await eventually(lambda router=router: not router.state.alive(), "the end of all three")  # type: ignore[misc]
            assert set(router.state.jobs.ended) == set(dead[:2])
            assert router.state.digest_of(JOBS) == 0
        await looks(routers[0])
        ends = [record.subject async for record in it.log.read(JOBS, StreamSeq(1))][2:]
        tokens = (asks_here(dead[0]), answered_token(dead[1]))
        assert sorted(ends) == sorted(subject(NAMESPACE, JOBS, token) for token in tokens)


async def test_the_end_of_jobs_is_written_by_whoever_is_left() -> None:
    """The one who wrote the worker off died in between; jobs of a worker that no kv stream knows end likewise."""
    async with world() as it:
        await it.log.ensure([JOBS])
        unknown, half = WorkerId(new_id()), WorkerId(new_id())
        for worker in (unknown, half):
            await append_as(it, JOBS, worker, completed("a", 0), about=answered_token(worker))
        await append_as(it, KV, f"{half}-lost", WorkerLost(by="x", reason="test"), about=half)
        router = await it.router()
        await eventually(lambda: {unknown, half} <= router.state.jobs.ended.keys(), "both ends")
        assert not router.state.jobs.parts
        assert len(await it.told(JOBS, WorkerLost)) == 2


async def test_an_end_that_was_read_meanwhile_is_not_written_elsewhere() -> None:
    """With the end, where the worker asked is forgotten: a second one, by whoever judged it before it read the first,
    would stand on another subject and look like a chain that somebody broke."""
    async with world() as it:
        await it.log.ensure([JOBS])
        worker, lost = WorkerId(new_id()), WorkerLost(by="x", reason="test")
        await append_as(it, KV, f"{worker}-lost", lost, about=worker)
        await append_as(it, JOBS, worker, asked("a", 1), about=asks_here(worker))
        router = await it.router()
        await eventually(lambda: worker in router.state.jobs.ended, "its end")
        assert await router.liveness_monitor.loss_log.append(JOBS, worker, lost)
        assert len(await it.told(JOBS, WorkerLost)) == 1
