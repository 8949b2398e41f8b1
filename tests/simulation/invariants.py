"""Laws that hold when a world rests. Each takes the world and raises `Broken`."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from core.codec import CHAIN_START, decode_message, digest
from core.events import DivergenceFound, RequestRouted
from core.ids import StreamName
from core.subjects import JOBS, LOAD, ROUTING, owner
from projections.folds.state import State
from projections.runner.rebuild import rebuild
from streams.snapshot_store import SnapshotStore
from tests.simulation import faults
from tests.simulation.engine import KEY
from tests.simulation.holding_laws import everybody_held_goes_on
from tests.simulation.parts import NAMESPACE
from tests.simulation.prefill_laws import PREFILL_LAWS
from tests.simulation.replays import decisions_replay
from tests.simulation.witness import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World

Law = Callable[["World"], None]


def folded_anew(world: World) -> State:
    """The fold from zero of what the log holds now."""
    state = State(KEY.chain_key)
    for name in faults.streams_of(world):
        stream = world.stream(name)
        state.open(name, stream.epoch)
        for record in stream.from_seq(1):
            state.apply(record.stream, record.seq, record.subject, record.payload)
    return state


def equal_cursor_equal_digest(world: World) -> None:
    """At an equal cursor all replicas have one digest, and it is that of a fold from zero, if that is complete.

    An end that the world took out of the log again is known to those who had read it alone.
    """
    anew = folded_anew(world)
    folds = [("the log gives", anew), *((part.name, part.router.state) for part in world.replicas.values())]
    for name, at in anew.cursor.items():
        found: dict[int, str] = {}
        for who, state in folds:
            projection = state.projection(name)
            if state.cursor[name] != at or projection.incomplete:
                continue
            if state is anew and any(_ended(each, name) & _there(anew, name) for _, each in folds):
                continue
            found[projection.digest] = who
        if len(found) > 1:
            raise Broken(f"digests at {name}:{at.seq}: {', '.join(f'{who} {of:016x}' for of, who in found.items())}")


def _there(state: State, name: StreamName) -> AbstractSet[str]:
    """Sources that have not ended."""
    if name == LOAD:
        return state.loads.chains.keys()
    if name == JOBS:
        return state.jobs.parts.keys()
    return state.routing.replicas.keys() if name == ROUTING else state.kv[name].members.keys()


def _ended(state: State, name: StreamName) -> AbstractSet[str]:
    """Sources that have."""
    if name == LOAD:
        return state.loads.ended.keys()
    if name == JOBS:
        return state.jobs.ended.keys()
    return state.routing.ended.keys() if name == ROUTING else state.kv[name].ended.keys()


def index_claims_what_caches_hold(world: World) -> None:
    """The index has exactly the blocks that each worker's mirror reports, and the engine holds all of them."""
    for part in world.replicas.values():
        for worker in world.workers.values():
            mirror = worker.worker.mirror
            assert mirror is not None
            held = part.router.state.index.held(worker.id)
            if held != set(mirror.held("device")):
                raise Broken(f"{part.name} has {len(held)} blocks of {worker.name}, which holds {mirror.reported}")
            if extra := held - worker.engine.hashes():
                raise Broken(f"{len(extra)} blocks that {worker.name} reports are not in its engine")


def nothing_acknowledged_is_lost(world: World) -> None:
    """Every acknowledged message stands in the log with its bytes, unless the world took it."""
    held = {(name, r.subject, r.payload) for name in faults.streams_of(world) for r in world.stream(name).from_seq(1)}
    for key, acknowledged in world.witness.acknowledged_messages.items():
        stream, subject, payload = key
        if key not in held and (stream, payload) not in world.witness.taken:
            raise Broken(f"{subject} was told that {stream}:{acknowledged.seq} holds its message; the log has it not")


def every_message_once(world: World) -> None:
    """No message stands in the log twice, and none that nobody sealed."""
    for name in faults.streams_of(world):
        seen: dict[bytes, int] = {}
        for record in world.stream(name).from_seq(1):
            if record.payload in seen:
                raise Broken(f"one message stands in {name} at {seen[record.payload]} and at {record.seq}")
            if record.payload not in world.witness.sealed | world.witness.made:
                raise Broken(f"nobody sealed what stands in {name} at {record.seq}")
            seen[record.payload] = record.seq


def chains_are_whole(world: World) -> None:
    """In a log that lost nothing, every source's messages follow on each other from its first to its last."""
    if not world.witness.history_kept:
        return
    for name in faults.streams_of(world):
        heads: dict[str, tuple[int, bytes]] = {}
        for record in world.stream(name).from_seq(1):
            message = decode_message(record.payload)
            n, head = heads.get(message.source, (0, CHAIN_START))
            if (message.n, message.prev) != (n, head):
                raise Broken(f"{message.source} has a gap at {name}:{record.seq}: n {message.n}, wanted {n}")
            heads[message.source] = n + 1, digest(record.payload, KEY.chain_key)


def the_dead_leave_nothing(world: World) -> None:
    """What has ended has no blocks, no load, nothing in flight, in no fold; and nothing is in flight at rest."""
    dead = world.witness.writers - {worker.id for worker in world.workers.values()}
    for part in world.replicas.values():
        state, ahead = part.router.state, part.router.publisher.pending_events
        for worker in sorted(dead):
            if state.index.blocks(worker) or state.index.held(worker):
                raise Broken(f"{part.name} still has blocks of worker {worker}, which is over")
            if any(worker in kv.members for kv in state.kv.values()):
                raise Broken(f"{part.name} still has a part of worker {worker}, which is over")
        if busy := {worker: load for worker, load in state.routing.in_flight_load.busy.items() if load}:
            raise Broken(f"{part.name} has requests in flight at rest: {busy}")
        if any(ahead.in_flight_load.busy.values()) or ahead.computed:
            raise Broken(f"{part.name} is ahead of the log at rest: {ahead.in_flight_load.busy}, {ahead.computed}")
        for other in state.routing.replicas.values():
            if other.in_flight or (other.ended and (other.local or other.predicted)):
                raise Broken(f"{part.name} keeps what replica {other.replica} had in flight: {other}")


def no_false_alarm(world: World) -> None:
    """Where no history was rewritten and nobody was tampered with, nobody finds a divergence."""
    if not world.witness.history_kept or world.witness.tampered:
        return
    for record in world.stream(ROUTING).from_seq(1):
        for event in decode_message(record.payload).events:
            if isinstance(event, DivergenceFound):
                raise Broken(f"{owner(record.subject)} found a divergence where there is none: {event}")
    for part in world.replicas.values():
        if found := part.router.background_tasks.digest_exchange.describe()["divergences"]:
            raise Broken(f"{part.name} found {found} divergences where there are none")


def decisions_are_in_the_log(world: World) -> None:
    """Whoever was served has a decision in the log, once; also from a replica that was killed, if it had a journal.

    Not if its outbox overflowed, or its end was written by others though it lived.
    """
    if not world.witness.history_kept or world.options.pending_events_max:
        return
    routed: dict[tuple[str, int], int] = {}
    for record in world.stream(ROUTING).from_seq(1):
        for event in decode_message(record.payload).events:
            if isinstance(event, RequestRouted):
                routed[event.request, event.attempt] = routed.get((event.request, event.attempt), 0) + 1
    if twice := [key for key, count in routed.items() if count > 1]:
        raise Broken(f"decisions stand in the log twice: {twice}")
    requests = {request for request, _ in routed}
    for request, part in world.served.items():
        kept = part.process.alive or part.journals is not None
        if kept and part.router.publisher.id == part.first_id and request not in requests:
            raise Broken(f"{request} was served by {part.name}, the log has no decision of it")


async def snapshots_are_true(world: World) -> None:
    """The newest snapshot that is good, with what follows it, is the fold of all; each is good if history was kept."""
    store = SnapshotStore(world.log, NAMESPACE, KEY.chain_key)
    rebuilt = await rebuild(world.log, KEY.chain_key, store)
    if rebuilt.refused and world.witness.history_kept:
        raise Broken(f"a snapshot is refused though history was kept: {rebuilt.refused}")
    if rebuilt.manifest is None:
        return
    world.witness.saw("restored", rebuilt.manifest.id)
    anew = folded_anew(world)
    for name in anew.cursor:
        both = (rebuilt.state, anew)
        if any(state.projection(name).incomplete for state in both):
            continue
        if _ended(rebuilt.state, name) & _there(anew, name):
            continue  # an end was deleted from the log: the snapshot still knows of it
        found, wanted = (state.digest_of(name) for state in both)
        if found != wanted:
            raise Broken(f"from snapshot {rebuilt.manifest.id} {name} has {found:016x}, from zero {wanted:016x}")


LAWS: tuple[Law, ...] = (
    *PREFILL_LAWS,
    everybody_held_goes_on,
    equal_cursor_equal_digest,
    index_claims_what_caches_hold,
    nothing_acknowledged_is_lost,
    every_message_once,
    chains_are_whole,
    the_dead_leave_nothing,
    decisions_replay,
    no_false_alarm,
    decisions_are_in_the_log,
)
