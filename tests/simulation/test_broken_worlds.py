"""The simulation can fail: whatever is broken in the code under test, some law is soon found not to hold."""

from __future__ import annotations

import random
from typing import Any

import pytest

import actors.router.request_scheduler
import replay.verify.judge
from actors.consistency.digest_exchange import DigestExchange
from actors.router.liveness_monitor import LivenessMonitor
from core.block_spans import Blocks, packed, single, unpacked
from core.errors import WrongSequence
from core.ids import StreamSeq
from core.subjects import LOAD, ROUTING
from projections.digest import MASK64
from projections.folds.kv_fold import KvFold
from projections.folds.routing_fold import RoutingFold
from projections.folds.state import State
from projections.index.prefix_index import PrefixIndex
from projections.policy.view import View
from streams.memory.memory_stream import MemoryStream
from streams.outbox.journal_recovery import JournalRecovery
from streams.outbox.source_chain import SourceChain
from tests.simulation.breaking import KEPT, Broken, does_nothing, replaces


def _renumbers(pause: Any) -> Any:
    def new(self: SourceChain, now_us: int) -> None:
        if self.sealed is not None and self._backlog.events:  # not answered: the n goes to the next message
            self.sealed = None
        pause(self, now_us)

    return new


def _acknowledges_nothing(store: Any) -> Any:
    def new(self: MemoryStream, new: Any, message_id: str, expected: int) -> Any:
        if ".load." in new.subject and self.last % 10 == 9 and self.end(new.subject):
            return new._replace(seq=StreamSeq(self.last))
        return store(self, new, message_id, expected)

    return new


def _stores_twice(store: Any) -> Any:
    def new(self: MemoryStream, new: Any, message_id: str, expected: int) -> Any:
        try:
            return store(self, new, message_id, expected)
        except WrongSequence:
            return store(self, new, message_id, self.end(new.subject))

    return new


def _forgets_removals(remove: Any) -> Any:
    def new(self: PrefixIndex, worker: Any, tier: str, blocks: Blocks) -> None:
        remove(self, worker, tier, packed([piece for piece in unpacked(blocks) if piece.hashes[0] % 3]))

    return new


def _skips_a_record(apply: Any) -> Any:
    calls = [0]

    def new(self: State, stream: Any, seq: Any, subject: str, payload: bytes) -> Any:
        calls[0] += 1
        if calls[0] % 97 == 0:
            self.cursor[stream] = self.cursor[stream]._replace(seq=seq)
            return None
        return apply(self, stream, seq, subject, payload)

    return new


def _depends_on_the_order(apply: Any) -> Any:
    def new(self: State, stream: Any, seq: Any, subject: str, payload: bytes) -> Any:
        result = apply(self, stream, seq, subject, payload)
        if stream == ROUTING and LOAD in self.cursor and self.cursor[LOAD].seq % 2:
            self.routing.digest = (self.routing.digest + 1) & MASK64
        return result

    return new


def _throws_dice(decide: Any) -> Any:
    dice = random.Random(1)

    def new(view: View, *rest: Any, **named: Any) -> Any:
        alive = [member.worker for member in view.state.alive()]
        hidden = {"failed": frozenset(dice.sample(alive, 1))} if len(alive) > 1 and dice.random() < 0.2 else {}
        return decide(view._replace(local={**view.local, **hidden}), *rest, **named)

    return new


def _ends_no_requests(end: Any) -> Any:
    def new(self: RoutingFold, source: Any, reason: str) -> None:
        part = self.replicas.get(source)
        kept = {} if part is None else dict(part.in_flight)
        end(self, source, reason)
        for key, entry in kept.items():
            self.in_flight_load.add(key, entry)

    return new


def _keeps_blocks(end: Any) -> Any:
    def new(self: KvFold, member: Any, reason: str) -> None:
        held = self.index.held(member.worker)
        end(self, member, reason)
        self.index.store(member.worker, "device", single(sorted(held)))

    return new


BROKEN = {
    "an outbox that gives a number to another message": Broken(
        replaces(SourceChain, "_pause", _renumbers), "other bytes", {"answer_lost": 0.2, **KEPT}
    ),
    "a log that acknowledges what it does not store": Broken(
        replaces(MemoryStream, "store", _acknowledges_nothing), "the log has it not", KEPT
    ),
    "a log that stores what comes twice": Broken(
        replaces(MemoryStream, "store", _stores_twice), "stands in", {"asked_twice": 0.3, "answer_lost": 0.1, **KEPT}
    ),
    "an index that forgets removals": Broken(
        replaces(PrefixIndex, "remove", _forgets_removals), "blocks of", {"capacity_blocks": 12, **KEPT}
    ),
    "a fold that skips a record": Broken(replaces(State, "apply", _skips_a_record), "", KEPT),
    "a fold that depends on the order between streams": Broken(
        replaces(State, "apply", _depends_on_the_order), " has ", {"replicas": 2, **KEPT}
    ),
    "a decision with dice of its own": Broken(
        replaces(actors.router.request_scheduler, "decide_newest", _throws_dice), "replays", {"workers": 3, **KEPT}
    ),
    "a judge with dice of its own": Broken(
        replaces(replay.verify.judge, "decide", _throws_dice), "verify finds", {"workers": 3, "verified": True, **KEPT}
    ),
    "requests that outlive their replica": Broken(
        replaces(RoutingFold, "_end", _ends_no_requests), "in flight", {"kill_replica": 0.5, **KEPT}
    ),
    "blocks that outlive their worker": Broken(
        replaces(KvFold, "_end", _keeps_blocks), "", {"kill_worker": 0.5, **KEPT}
    ),
    "replicas that do not listen to each other": Broken(
        replaces(DigestExchange, "_on_report", lambda _: lambda *_: None),
        "",
        {**KEPT, "tamper": 2.0, "replicas": 2, "restate_every_s": 1e6},
    ),
    "nobody who finds out who is lost": Broken(
        replaces(LivenessMonitor, "run", lambda _: does_nothing), "alive", {"kill_worker": 0.5, **KEPT}
    ),
    "nobody who tells what the dead left": Broken(
        replaces(JournalRecovery, "recover", lambda _: does_nothing),
        "left",
        {"kill_replica": 0.5, "journals": True, **KEPT},
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_code_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of this kind breaks a law within a few seeds, and the failure says how to see it again."""
    BROKEN[name].is_found_out(monkeypatch)
