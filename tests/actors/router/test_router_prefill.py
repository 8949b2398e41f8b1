"""A replica in a deployment with prefill workers: who is asked, who is named to whom, and what it says of the queue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from actors.membership.registration import Registration
from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.capacity import find_capacity
from actors.router.scheduler_counts import PrefillCounts
from actors.transport.frames import Generate
from actors.transport.framing import decode_to_worker
from core.events import RequestRouted
from core.generation import PrefillReport
from core.ids import WorkerId
from core.models import NoWorkers
from core.prompt import Prompt, hashes_from_bytes, scope_bytes, tokens_to_bytes
from core.subjects import JOBS, ROUTING, answered_token, asked_token
from replay.verify.verify import verify
from tests.actors.membership.test_failure_detector import append_as
from tests.actors.world import FAST, KEY, NAMESPACE, World, collect, request, world
from tests.fixtures.eventually import eventually
from tests.projections.facts import stored
from tests.projections.job_facts import asked, failed
from tests.replay.recorded import recorded


def id_of(it: World, name: str) -> WorkerId:
    presence = it.workers[name].publisher
    assert presence is not None
    return presence.id


async def prefill_worker(it: World, name: str, model: str = "sim") -> WorkerId:
    """A worker that is registered, connected and in the log as one for prefills; what it computes matters to nobody."""
    await it.worker(name, model, role="prefill", settings=replace(FAST, transfer=True))
    return id_of(it, name)


async def test_requests_never_go_to_prefill_workers() -> None:
    """They are no candidates; cards count only who decodes."""
    async with world() as it:
        await it.log.ensure([JOBS])
        await it.worker("a")
        there = await prefill_worker(it, "p")
        router = await it.router()
        await eventually(lambda: router.fleet.connected(there), "the prefill worker is connected")
        await it.ready(router, 1)
        for number in range(4):
            await collect(router, request(range(number, number + 40)))
        await it.settled(router)
        routed = await it.told(ROUTING, RequestRouted)
        assert there not in {event.worker for event in routed}
        assert {event.candidates_total for event in routed} == {1}


async def test_a_model_with_only_prefill_workers_says_so() -> None:
    """Before any decode worker came, and after the last one went."""
    async with world() as it:
        await it.log.ensure([JOBS])
        there = await prefill_worker(it, "p")
        router = await it.router()
        await eventually(lambda: there in router.fleet.registered, "it is registered")
        assert router.models() == []
        with pytest.raises(NoWorkers, match="only prefill workers"):
            await collect(router, request(range(40)))
        await it.worker("a")
        await it.ready(router)
        await collect(router, request(range(40)))
        await it.workers.pop("a").stop("test", drain=False)
        await eventually(lambda: len(router.state.alive()) == 1, "it left")
        with pytest.raises(NoWorkers, match="only prefill workers"):
            await collect(router, request(range(40)))


async def test_prefill_workers_add_places_to_workers_of_their_own_model() -> None:
    """Only those requests wait for a prompt outside the engine. Another model's prefill workers change nothing."""
    async with world() as it:
        await it.log.ensure([JOBS])
        await it.worker("a", settings=replace(FAST, max_seqs=8))
        router = await it.router()
        await it.ready(router)

        def places() -> int:
            capacity = find_capacity(router.view(), "sim", router.settings, router.slots)
            assert capacity is not None
            return capacity.slots

        assert places() == 9
        await prefill_worker(it, "p", "other")
        await eventually(lambda: len(router.state.prefilling()) == 1, "the other model's prefill worker is known")
        assert places() == 9
        await prefill_worker(it, "q")
        await eventually(lambda: len(router.state.prefilling()) == 2, "the model's own prefill worker is known")
        assert places() == 16


async def test_who_holds_the_prompt_is_named_and_verified(tmp_path: Path) -> None:
    """In the record and to the worker; made again from the log the decision is the same."""
    async with world() as it:
        await it.log.ensure([JOBS])
        await it.worker("a")
        there = await prefill_worker(it, "p")
        router = await it.router()
        await it.ready(router)
        await eventually(lambda: router.fleet.connected(there), "the prefill worker is connected")
        tokens = range(500, 540)
        hashes = hashes_from_bytes(Prompt(tokens_to_bytes(tokens), 16, KEY.hash_seed, scope_bytes(None, None)).hashes())
        presence = it.workers["p"].publisher
        assert presence is not None
        presence.publish([stored(*hashes[:2])])
        await eventually(lambda: router.state.index.blocks(there) == 2, "it holds the prompt")
        sent: list[bytes] = []
        line = router.fleet.clients[id_of(it, "a")]._connection
        assert line is not None
        send = line.send

        def noted(frame: bytes) -> None:
            sent.append(frame)
            send(frame)

        line.send = noted  # type: ignore[method-assign]
        for _ in range(2):
            await collect(router, request(tokens))
            await eventually(lambda: not len(router.publisher.pending_events), "all is said and read")
        first, second = await it.told(ROUTING, RequestRouted)
        assert (first.prefer, first.prefer_tokens) == (there, 32)
        assert (second.prefer, second.prefer_tokens) == ("", 0)  # its own cache has as much
        frames = [decode_to_worker(frame[4:]) for frame in sent]
        named = [(frame.hint.prefer, frame.hint.prefer_tokens) for frame in frames if isinstance(frame, Generate)]
        assert named == [(there, 32), ("", 0)]
        with await recorded(it.log, NAMESPACE, KEY, tmp_path / "log") as recording:
            found = verify(recording)
        assert (found.holds, found.verified, found.not_judged) == (True, 2, {})


REPORT = PrefillReport(
    remote=True, reason="long", uncached_tokens=900, queued=0, workers=1, min_tokens=512, queue_max=8, job="a",
    worker="p", outcome="pulled", pulled_tokens=800, wait_ms=150, pull_ms=20,
)  # fmt: skip


def test_verdicts_are_counted_by_what_is_known() -> None:
    """One row for each kind; a word that nobody knows makes no label of its own."""
    counts = PrefillCounts()
    for _ in range(2):
        counts.note("tiny", REPORT)
    for reason in ("short", "no such reason", "nor this"):
        counts.note("tiny", PrefillReport(
            remote=False, reason=reason, uncached_tokens=1, queued=0, workers=1, min_tokens=512, queue_max=8
        ))  # fmt: skip
    rows = counts.describe()
    assert [(row["reason"], row["outcome"], row["requests"]) for row in rows] == [
        ("long", "pulled", 2), ("other", "", 2), ("short", "", 1),
    ]  # fmt: skip
    assert (rows[0]["pulled_tokens"], rows[0]["wait_ms"]) == (1600, 300)


async def test_the_queue_and_the_verdicts_are_metrics() -> None:
    """As the log tells the one and first tokens the other."""
    async with world() as it:
        await it.log.ensure([JOBS])
        router = await it.router()
        d, p = WorkerId("d1" * 8), WorkerId("e2" * 8)
        router.fleet.registered[d] = router.fleet.registered[p] = Registration(
            model="sim", address="127.0.0.1:1", engine="e", block_size=16, context_max=1
        )
        await append_as(it, JOBS, d, asked("a", 1, tokens=700), about=asked_token(d))
        await append_as(it, JOBS, p, failed("b", 0, dead=True), about=answered_token(p))
        await eventually(lambda: len(router.state.jobs.parts) == 2, "they are folded")
        router.scheduler.prefills.note("sim", REPORT)
        metrics = FrontendMetrics()
        metrics.watch_replica(router.describe)
        lines = generate_latest(metrics.registry).decode().splitlines()
    for line in (
        "contrail_prefill_jobs_waiting 1.0",
        "contrail_prefill_jobs_open 1.0",
        "contrail_prefill_waiting_tokens 700.0",
        "contrail_prefill_dead_letters_total 1.0",
        'contrail_prefill_verdicts_total{model="sim",outcome="pulled",reason="long"} 1.0',
        'contrail_prefill_wait_seconds_total{model="sim",outcome="pulled",reason="long"} 0.15',
        'contrail_prefill_pulled_tokens_total{model="sim",outcome="pulled",reason="long"} 800.0',
    ):
        assert line in lines
    oldest = next(line for line in lines if line.startswith("contrail_prefill_oldest_seconds "))
    assert float(oldest.split()[1]) > 1e9  # asked at 0 of its clock
