"""What must be true of a disaggregated deployment when nobody asks it anything: nothing held, nothing open."""

from __future__ import annotations

import asyncio
import time

from core.codec import decode_message
from core.events import WorkerJoined, WorkerLeft, WorkerLost
from core.ids import StreamName, StreamSeq
from core.subjects import JOBS, owner
from tests.chaos.broker import broker_of
from tests.chaos.disagg_site import ANCHOR, Site

OVER = ""
"""The name of nobody who lives."""

REST_S = 60.0
"""How long all may take to come to rest: longer than blocks are held."""
LOOK_S = 0.5
OPEN_PREFILL = ("jobs_open", "jobs_under_way", "prompts_held")


async def leaks(site: Site) -> list[str]:
    """Blocks in use and jobs open in workers though nobody asks, when they have had the time."""
    deadline_s = time.monotonic() + REST_S + site.kind.keep_s
    while found := await asyncio.to_thread(_busy, site):
        if time.monotonic() > deadline_s:
            break
        await asyncio.sleep(LOOK_S)
    return found


def _busy(site: Site) -> list[str]:
    found = []
    try:
        for name, state in site.states().items():
            prefill = state["prefill"]
            numbers = {key: prefill[key] for key in OPEN_PREFILL if prefill.get(key)}
            numbers |= {key: prefill["engine"]["held"] for key in ("held",) if prefill["engine"]["held"]}
            numbers |= {key: state[key] for key in ("requests", "waiting") if state[key]}
            used = site.metric(site.ops()[name], "contrail_worker_blocks_used{")
            numbers |= {"blocks used": used} if used else {}
            found += [f"{name}: {numbers}"] if numbers else []
    except (OSError, LookupError) as error:
        found.append(f"cannot be asked: {error!r}")
    return found


async def open_jobs(site: Site) -> list[str]:
    """Jobs that a decode worker that lives opened and did not end; and jobs with two ends."""
    names = await _names(site)
    living = {worker.name for worker in site.all if worker.lives} | {ANCHOR}
    twice = [f"job {job} has {life.ends} ends" for job, life in site.jobs.jobs.items() if life.ends > 1]
    return twice + [
        f"job {job} of {names.get(life.requester, life.requester)} is open"
        for job, life in site.jobs.jobs.items()
        if not life.ends and names.get(life.requester, ANCHOR) in living
    ]


async def handed_out_again(site: Site) -> int:
    """How often the queue has handed out messages beyond once each, as far as the broker remembers."""
    async with broker_of(site.running) as broker:
        queues = [one for one in (await broker.consumers())[JOBS] if one["config"].get("durable_name")]
    taken = sum(int(queue["delivered"]["consumer_seq"]) + int(queue["num_pending"]) for queue in queues)
    return taken - site.jobs.queued


async def _names(site: Site) -> dict[str, str]:
    """Names of all workers, by the ids under which they went; an id that is over, whoever said so, has no open jobs."""
    names = {}
    async with site.running.log() as log:
        async for record in log.read(StreamName("kv_0"), StreamSeq(1)):
            for event in decode_message(record.payload).events:
                if isinstance(event, WorkerJoined):
                    names[owner(record.subject)] = event.name
                if isinstance(event, WorkerLeft | WorkerLost):
                    names[owner(record.subject)] = OVER
    return names
