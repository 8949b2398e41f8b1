"""Rare states of a log, each made once: bounds that are met exactly, chains that repeat or replace a message,
restatements that are interrupted, own events that are unread in rare orders, clocks that are off.

A model of its own has its own workers, so nothing else in the log has a part in these states.
"""

from __future__ import annotations

from msgspec import structs

from core.codec import DIGEST_BYTES, digest, encode_event, encode_message
from core.events import CacheCleared, Event, LocalChanged, PromptBase, RequestRouted, WorkerLeft
from core.events.jobs import JobsRestated
from core.events.kv import PREFILL
from core.events.routing import CONTINUED_VERSION, DecisionCounts
from core.ids import ReplicaId, SourceId, StreamName
from core.prompt import HASH_BYTES, SHARES, Prompt, column_digest, hashes_from_bytes, sampled
from core.settings import APPROXIMATE, TIERS, RoutingSettings
from core.subjects import JOBS, LOAD, ROUTING, answered_token, asked_token
from tests.projections.facts import (
    finished,
    joined,
    load,
    prefilled,
    prompt,
    removed,
    removed_chain,
    replica_restated,
    restated,
    stored,
    stored_chain,
    worker_id,
)
from tests.projections.job_facts import asked, cancelled, failed, pulled, started
from tests.replay.staged import KEY, KV, R, Stage

MODEL = "small"
WORKERS = [worker_id(number) for number in range(71, 75)]
NAMES = [f"small-{number}" for number in range(4)]
PREFILLING = [worker_id(81), worker_id(82)]
U = ReplicaId("bb" * 8)
"""A replica that states how many decisions it made and dropped."""
SKEW_MS = 5000
LONG_TALK_BLOCKS = 1 << SHARES
UNKNOWN_TIER = "tape"
SCENARIO_DELAY_MS = 40
"""A scenario of the examination sees the log so much later."""


class RareStates:
    """Adds the states to a log."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._number = 0

    def add(self) -> None:
        """The log has all of them."""
        stage = self.stage
        for worker, name in zip(WORKERS, NAMES, strict=True):
            stage.say(KV, worker, joined(name, model=MODEL))
            stage.say(LOAD, worker, load())
        for number, worker in enumerate(PREFILLING):
            stage.say(KV, worker, structs.replace(joined(f"small-prefill-{number}", model=MODEL), role=PREFILL))
        stage.replica(U, "frontend-3", RoutingSettings(policy="kv"))
        for make in (
            self._cost_at_the_margin, self._waiting_at_the_bound, self._two_reasons, self._prefer_the_idle,
            self._replace_a_message, self._repeat_a_message, self._interrupt_a_restatement, self._tell_of_a_new_tier,
            self._clear_runs, self._end_a_job_unread, self._route_again, self._restate_what_is_believed,
            self._expire_exactly, self._decline, self._leave, self._drain_what_a_scenario_leaves, self._state_counts,
            self._set_clocks_wrong, self._cut_a_run, self._continue_a_long_talk, self._decide_just_then,
        ):  # fmt: skip
            make()
            stage.tell(stage.report(R))

    def _route(
        self, asked_prompt: Prompt, *, request: str = "", lag: int = 0, replica: ReplicaId = R, end: bool = False
    ) -> RequestRouted:
        """Routes a request while the replica has not read its last `lag` messages; with `end` it ends at once."""
        self._number += 1
        name = request or f"s{self._number}"
        event = self.stage.decided(
            name, asked_prompt, replica=replica, model=MODEL, lag={ROUTING: lag}, seed=self._number
        )
        self.stage.tell(event, replica=replica)
        if end:
            self.stage.tell(finished(name), replica=replica)
        return event

    def _cost_at_the_margin(self) -> None:
        """A worker with a block less in its cache costs exactly the margin more."""
        self.stage.settings(RoutingSettings(policy="kv", tie_margin_m=1000))
        blocks = _blocks(1, 2, 3)
        self.stage.say(KV, WORKERS[0], stored(*blocks[:2]))
        self.stage.say(KV, WORKERS[1], stored(*blocks))
        for _ in range(6):
            self._route(prompt(1, 2, 3), end=True)
        self.stage.settings(RoutingSettings(policy="kv"))

    def _waiting_at_the_bound(self) -> None:
        waiting_max = RoutingSettings().waiting_max
        for waiting in (waiting_max - 1, waiting_max, waiting_max + 1, 0):
            self.stage.say(LOAD, WORKERS[3], load(waiting))
            self._route(prompt(1, 2, 3, 4), end=True)

    def _two_reasons(self) -> None:
        """A worker is left out for two reasons at once."""
        for reasons in (("not_connected", "failed"), ("suspected", "failed", "stale"), ()):
            self.stage.tell(LocalChanged(worker=WORKERS[2], reasons=reasons))
            self._route(prompt(5, 6), end=True)

    def _prefer_the_idle(self) -> None:
        """Two prefill workers hold as much, and requests wait at one; then the replica has a reason against the other
        one."""
        for worker, waiting in zip(PREFILLING, (5, 1), strict=True):
            self.stage.say(KV, worker, stored(*_blocks(11, 12, 13, 14, 15)))
            self.stage.say(LOAD, worker, load(waiting))
        for reasons in ((), ("failed",), ()):
            self.stage.tell(LocalChanged(worker=PREFILLING[1], reasons=reasons))
            self._route(prompt(11, 12, 13, 14, 15), end=True)

    def _replace_a_message(self) -> None:
        """A message has its number, and follows on another than the one before it."""
        stage, worker = self.stage, WORKERS[2]
        stage.say(KV, worker, stored(*_blocks(21, 22)))
        n, _ = stage._chains[KV, worker]
        events = [encode_event(stored(*_blocks(21, 22, 23)))]
        stage.store(KV, worker, encode_message(SourceId(worker), n, bytes(DIGEST_BYTES), stage.clock.now_ms, events))
        self._route(prompt(21, 22, 23), end=True)
        stage.tell(stage.report(R))
        stage.say(KV, worker, restated(0, 1, *_blocks(21, 22)))

    def _repeat_a_message(self) -> None:
        """The newest message of a worker is in the log twice."""
        stage, worker = self.stage, WORKERS[2]
        payload = stage.sealed(KV, worker, stored(*_blocks(31, 32)))
        stage.store(KV, worker, payload)
        stage.store(KV, worker, payload)
        self._route(prompt(31, 32), end=True)

    def _interrupt_a_restatement(self) -> None:
        """A restatement begins again before its last part."""
        stage, worker = self.stage, WORKERS[2]
        blocks = _blocks(41, 42, 43, 44)
        stage.say(KV, worker, restated(0, 2, *_blocks(45, 46)))
        stage.say(KV, worker, restated(0, 2, *blocks[:2]))
        self._route(prompt(31, 32), end=True)
        stage.say(KV, worker, restated(1, 2, *blocks[2:]))
        self._route(prompt(41, 42, 43, 44), end=True)

    def _tell_of_a_new_tier(self) -> None:
        """A worker has blocks on a tier that this program does not know, and takes one from a tier that it knows."""
        stage, worker, blocks = self.stage, WORKERS[2], _blocks(51, 52, 53)
        stage.say(KV, worker, stored(*blocks, tier=UNKNOWN_TIER))
        stage.say(KV, worker, stored(*blocks, tier=TIERS[1]), removed(*blocks, tier=UNKNOWN_TIER))
        stage.say(KV, worker, stored(*blocks[:1], tier=TIERS[1]))
        self._route(prompt(51, 52, 53), end=True)
        stage.say(KV, worker, removed(*blocks[2:], tier=TIERS[1]))
        self._route(prompt(51, 52, 53), end=True)
        for tier in (UNKNOWN_TIER, TIERS[2]):
            stage.say(KV, worker, restated(0, 1, *blocks, tier=tier))
            self._route(prompt(51, 52, 53), end=True)

    def _clear_runs(self) -> None:
        """A worker that shared runs of blocks with another one holds nothing."""
        stage, blocks = self.stage, _blocks(*range(60, 100))
        for worker in WORKERS[:2]:
            stage.say(KV, worker, stored_chain(*blocks))
        stage.say(KV, WORKERS[0], CacheCleared(reason="reset"))
        self._route(prompt(*range(60, 100)), end=True)

    def _end_a_job_unread(self) -> None:
        """A job ends by an event of a later program, and another one is given up."""
        stage, worker = self.stage, WORKERS[0]
        later = encode_event(cancelled("a" * 16, 1)).replace(b"PrefillCancelled", b"PrefillForgotten")

        def say(*events: object) -> None:
            stage.say(JOBS, worker, *events, about=asked_token(worker))  # type: ignore[arg-type]

        say(asked("a" * 16, 1, MODEL), asked("b" * 16, 2, MODEL))
        n, head = stage._chains[JOBS, worker]
        stage.store(
            JOBS, worker, encode_message(SourceId(worker), n, head, stage.clock.now_ms, [later]),
            about=asked_token(worker),
        )  # fmt: skip
        say(asked("c" * 16, 2, MODEL))
        say(pulled("b" * 16, 1))
        stage.tell(stage.report(R))
        say(pulled("c" * 16, 0), JobsRestated(open=0))
        job, answerer = "e" * 16, PREFILLING[0]
        say(asked(job, 1, MODEL))
        stage.say(JOBS, answerer, started(job, 1, worker), failed(job, 0, dead=True), about=answered_token(answerer))
        stage.say(KV, PREFILLING[1], CacheCleared(reason="reset"))
        say(cancelled(job, 0))

    def _route_again(self) -> None:
        """An attempt ends and is routed again before its replica reads its end."""
        self._route(prompt(61, 62), request="again")
        self.stage.seat(R)
        self.stage.tell(finished("again"))
        self._route(prompt(61, 62), request="again", lag=1)
        self._route(prompt(61, 62), lag=2, end=True)
        self.stage.tell(finished("again"))

    def _restate_what_is_believed(self) -> None:
        """A replica restates itself before it reads a first token of its own."""
        stage = self.stage
        stage.settings(RoutingSettings(policy=APPROXIMATE))
        self._route(prompt(63, 64), request="believed")
        stage.seat(R)
        stage.tell(prefilled("believed"))
        stage.tell(replica_restated([]))
        self._route(prompt(63, 64), lag=2, end=True)

    def _expire_exactly(self) -> None:
        """The time of blocks passes with the millisecond of the next decision."""
        stage = self.stage
        stage.settings(RoutingSettings(policy=APPROXIMATE, approximate_ttl_s=1))
        for first in (110, 120):
            for number in range(len(WORKERS)):
                self._route(prompt(first + number), request=f"x{first + number}")
            for number in range(len(WORKERS)):
                stage.tell(prefilled(f"x{first + number}"), finished(f"x{first + number}"))
            stage.tell(stage.report(R))
            stage.clock.advance(1000)
        stage.settings(RoutingSettings(policy="kv"))

    def _decline(self) -> None:
        """A worker declines an attempt, and the request is routed again."""
        self._route(prompt(131), request="declined")
        self.stage.tell(structs.replace(finished("declined"), outcome="declined", output_tokens=0))
        event = self.stage.decided("declined", prompt(131), attempt=1, model=MODEL)
        self.stage.tell(event, finished("declined", 1))

    def _leave(self) -> None:
        """A worker with the whole prompt in its cache leaves a moment before a decision."""
        stage, worker, blocks = self.stage, worker_id(75), _blocks(*range(140, 170))
        stage.say(KV, worker, joined("small-4", model=MODEL), stored(*blocks))
        stage.say(LOAD, worker, load())
        for other in WORKERS:
            stage.say(KV, other, stored(*blocks[:5]))
        stage.clock.advance(100)
        stage.say(KV, worker, WorkerLeft(reason="stopped"))
        stage.clock.advance(2)
        self._route(prompt(*range(140, 170)), end=True)

    def _drain_what_a_scenario_leaves(self) -> None:
        """Two of the workers cannot serve: a scenario without the others refuses the request."""
        for draining in (True, False):
            for worker in WORKERS[:2]:
                self.stage.say(LOAD, worker, load(draining=draining))
            for at in range(3):
                self._route(prompt(70 + at), end=True)

    def _state_counts(self) -> None:
        """A replica states its counts: all decisions are there, one was dropped, one is missing with its message,
        one stands in a message that is in the log twice, one is missing for no reason, and one is there too much."""
        stage = self.stage

        def state(made: int, dropped: int = 0) -> None:
            report = structs.replace(stage.report(U), counts=DecisionCounts(made, dropped, dropped))
            stage.tell(report, replica=U)

        self._route(prompt(81), replica=U, end=True)
        self._route(prompt(82), replica=U, end=True)
        state(2)
        self._route(prompt(83), replica=U, end=True)
        state(4, 1)
        self._lose(ROUTING, U, stage.decided("lost", prompt(84), replica=U, model=MODEL))
        state(5, 1)
        stage.tell(structs.replace(replica_restated([]), counts=DecisionCounts(5, 1, 1)), replica=U)
        self._repeat_decision()
        state(6, 1)
        state(7, 1)
        self._route(prompt(86), replica=U, end=True)
        state(7, 1)

    def _repeat_decision(self) -> None:
        stage = self.stage
        event = stage.decided("repeated", prompt(85), replica=U, model=MODEL)
        payload = stage.sealed(ROUTING, U, event)
        stage.seat(U).apply_own(stage.store(ROUTING, U, payload), event)
        stage.store(ROUTING, U, payload)
        stage.tell(finished("repeated"), replica=U)

    def _lose(self, stream: StreamName, source: str, event: Event) -> None:
        """The source seals a message that never reaches the log."""
        payload = self.stage.sealed(stream, source, event)
        n, _ = self.stage._chains[stream, source]
        self.stage._chains[stream, source] = n + 1, digest(payload, KEY.chain_key)

    def _set_clocks_wrong(self) -> None:
        """The clocks of a worker and of a replica are ahead of the broker's, and step behind it."""
        stage = self.stage
        stage.settings(RoutingSettings(policy=APPROXIMATE, approximate_ttl_s=8))
        for skew_ms in (SKEW_MS, -SKEW_MS, 0):
            stage.skew_ms = skew_ms
            for number in range(3):
                stage.say(LOAD, WORKERS[1], structs.replace(load(number), kv_head=bytes([number]) * DIGEST_BYTES))
                self._route(prompt(91 + number), request=f"k{skew_ms}-{number}")
                stage.tell(prefilled(f"k{skew_ms}-{number}"), finished(f"k{skew_ms}-{number}"))
                stage.clock.advance(20)
            stage.say(KV, PREFILLING[1], CacheCleared(reason="reset"))

    def _cut_a_run(self) -> None:
        """The one holder of a run of blocks loses its end, and has it again."""
        stage, tokens = self.stage, range(20_200, 20_208)
        stage.settings(RoutingSettings(policy="kv"))
        blocks = _blocks(*tokens)
        for change in (stored_chain(*blocks), removed_chain(*blocks, first=5), stored_chain(*blocks, first=5)):
            stage.say(KV, WORKERS[1], change)
            self._route(prompt(*tokens), end=True)

    def _continue_a_long_talk(self) -> None:
        """A decision continues one of so many blocks that each of their samples has a depth of its own."""
        tokens = range(20_300, 20_300 + LONG_TALK_BLOCKS)
        asked_prompt = prompt(*tokens, 1)
        self._route(prompt(*tokens))
        seq = self.stage.frames[ROUTING][-1].seq
        event = continued(
            self.stage.decided("continued", asked_prompt, model=MODEL), asked_prompt, seq, seq, LONG_TALK_BLOCKS
        )
        self.stage.tell(event, finished("continued"))

    def _decide_just_then(self) -> None:
        """A worker has the whole prompt for as long as a scenario lets decisions lag, to the millisecond."""
        stage, tokens = self.stage, range(20_400, 20_430)
        stage.say(KV, WORKERS[3], stored(*_blocks(*tokens)))
        stage.clock.advance(SCENARIO_DELAY_MS)
        self._route(prompt(*tokens), end=True)


def continued(event: RequestRouted, asked_prompt: Prompt, seq: int, root: int, blocks: int) -> RequestRouted:
    """The decision as one that continues the first of that message, with which it shares so many blocks."""
    hashes = asked_prompt.hashes()
    base = PromptBase(seq, 0, blocks, root, 0, sampled(hashes, blocks), column_digest(hashes))
    return structs.replace(event, v=CONTINUED_VERSION, base=base, hashes=hashes[HASH_BYTES * blocks :])


def _blocks(*numbers: int) -> list[int]:
    return hashes_from_bytes(prompt(*numbers).hashes())
