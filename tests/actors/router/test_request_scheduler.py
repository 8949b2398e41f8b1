"""The machine alone: slots, queue, attempts and ends, event by event."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.router import request_scheduler
from actors.router.adapter_loads import LOAD_US
from actors.router.request_scheduler import (
    AttemptBroke,
    ClientGone,
    ClockCorrected,
    Complete,
    Deliver,
    Draining,
    Fail,
    LoadChanged,
    OutputArrived,
    Publish,
    ReaderStopped,
    SchedulerEvent,
    Send,
)
from actors.router.routed_request import Phase, RoutedRequest
from actors.transport.worker_connection import WorkerDeclined, WorkerDisconnected, WorkerLeaving
from core.errors import CallerError
from core.events import (
    AdapterEvicted,
    AdapterLoaded,
    BlocksStored,
    LoadReported,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
)
from core.events.routing import CACHED_UNKNOWN, RequestQueued, RequestRejected, RequestTurnedAway
from core.generation import Output
from core.ids import RequestId, WorkerId
from core.models import DeadlineExceeded, GenerationFailed, NoWorkers, Overloaded
from core.prompt import Prompt, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD
from projections.folds.routing_fold import in_flight, restated_requests
from projections.policy.prefill_time import PrefillTime
from replay.simulate.simulated_log import KV, SimulatedSource
from tests.actors.router.scheduling import BLOCK_SIZE, MODEL, Scheduling
from tests.projections.facts import pool_joined, reads, worker_id

HOLDING = RoutingSettings(policy="time", hold_max_ms=1000, active_max=2)


def test_a_slot_that_is_given_back_goes_to_the_queue_in_the_next_tick() -> None:
    """The step of the end makes no decision: the next one sees all that this one published."""
    it = Scheduling()
    first, second = it.arrive("first"), it.arrive("second")
    assert (first.phase, second.phase) == (Phase.RUNNING, Phase.QUEUED)
    commands = it.output(first, 1, finish="stop")
    kinds = [type(command.event) if isinstance(command, Publish) else type(command) for command in commands]
    assert kinds[-3:] == [RequestFinished, Deliver, Complete]
    assert RequestRouted not in kinds
    assert it.scheduler.due_us == 0
    it.ticks()
    assert second.phase is Phase.RUNNING
    assert it.scheduler.describe()["models"] == [{"model": "sim", "active": 1, "waiting": 0}]


def test_a_slot_given_to_a_client_that_hangs_up_goes_on() -> None:
    """It was let in and is gone before its Tick: the next one has the slot, and none is lost."""
    it = Scheduling()
    first, second = it.arrive("first"), it.arrive("second")
    it.output(first, 1, finish="stop")
    third = it.arrive("third")  # before the Tick: the slot is the second one's
    assert (second.phase, third.phase) == (Phase.READY, Phase.QUEUED)
    it.hang_up(second)
    it.ticks()
    assert third.phase is Phase.RUNNING
    assert it.scheduler.describe()["models"] == [{"model": "sim", "active": 1, "waiting": 0}]
    assert [event.reason for event in it.published(RequestTurnedAway)] == ["client_gone"]  # type: ignore[union-attr]


def test_only_so_many_tenants_are_named() -> None:
    """However many names are invented, there is one label more at most; a tenant may have the name of all others."""
    it = Scheduling(RoutingSettings(policy="kv", active_max=64))
    tenants = ["other", "other", *(f"tenant-{number}" for number in range(20)), "tenant-7"]
    requests = [it.arrive(f"r{number}", tenant=tenant) for number, tenant in enumerate(tenants)]
    rows = it.scheduler.describe()["tenants"]
    assert len({row["tenant"] for row in rows}) == len(rows) == 16
    assert sum(row["active"] for row in rows) == len(requests)
    assert {"model": "sim", "tenant": "tenant-7", "active": 2} in rows
    for each in requests:
        it.output(each, 1, finish="stop")
    assert it.scheduler.describe()["tenants"] == []


def test_a_light_prompt_is_sent_in_the_step_of_its_arrival_and_a_long_one_in_a_tick() -> None:
    """Where none is held. Beside a held one it is planned with that."""
    it = Scheduling(HOLDING)
    light = it.arrive("light", 300)
    assert light.phase is Phase.RUNNING
    it.output(light, 1, finish="stop")
    long = it.arrive("long", 5000)
    assert long.phase is Phase.HELD
    assert it.arrive("beside", 300).phase is Phase.HELD
    it.ticks()
    assert it.routed == ["light", "beside", "long"][: len(it.routed)]
    assert "beside" in it.routed


@pytest.mark.parametrize(("tier", "learns"), [("device", True), ("host", False)])
def test_a_first_token_behind_loaded_blocks_teaches_no_price(tier: str, *, learns: bool) -> None:
    """The time of a load is no time of computing: only blocks on the device leave the computed tokens alone."""
    it = Scheduling(RoutingSettings(policy="time"), workers=0)
    source, hashes = Scheduling.join(it.log, 0), Prompt(tokens_to_bytes(range(20)), BLOCK_SIZE, 7).hashes()
    source.append([BlocksStored(hashes=hashes, tier=tier)])
    it.ticks(1_000_000)
    noted: list[int] = []
    it.scheduler.learned.note = lambda _model, tokens, *_times: noted.append(tokens)  # type: ignore[method-assign]
    asked = it.arrive("one")
    it.ticks()
    (routed,) = it.published(RequestRouted)
    assert isinstance(routed, RequestRouted)
    assert routed.expects_load is not learns
    it.output(asked, 1, cached_tokens=12)
    assert noted == [20 - 12] * learns


@pytest.mark.parametrize(("disk_m", "skips"), [(1, ()), (10**9, ("disk",))])
def test_a_tier_that_is_slower_than_computing_is_not_loaded_from(disk_m: int, skips: tuple[str, ...]) -> None:
    """By the times that the worker reports. The worker gets the tier's name with the request, and the record has the
    times. What is computed then teaches the price of computing."""
    it = Scheduling(RoutingSettings(policy="time", prefill_us_per_token_m=20_500), workers=0)
    source, hashes = Scheduling.join(it.log, 0), Prompt(tokens_to_bytes(range(20)), BLOCK_SIZE, 7).hashes()
    source.append([BlocksStored(hashes=hashes, tier="disk")])
    times = (1, disk_m, 0)
    report = LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=99, load_times=times)
    SimulatedSource(it.log, LOAD, source.source).append([report])
    it.ticks(1_000_000)
    it.arrive("one")
    it.ticks()
    (sent,), (routed,) = it.done(Send), it.published(RequestRouted)
    assert isinstance(sent, Send)
    assert isinstance(routed, RequestRouted)
    assert (sent.hint.skip_tiers, routed.load_time, routed.expects_load) == (skips, (*times, 0), not skips)
    assert routed.predicted_cached_tokens == (0 if skips else 16)


@pytest.mark.parametrize(("on_device", "on_disk", "told"), [(0, 3, 3), (1, 3, 3), (2, 1, 0), (2, 2, 0), (2, 0, 0)])
def test_the_worker_hears_how_much_lies_in_its_pools(on_device: int, on_disk: int, told: int) -> None:
    """In tokens, and only where a pool has more of the prompt than the worker itself."""
    it = Scheduling(workers=0)
    worker = Scheduling.join(it.log, 0, pools=reads("pool"))
    pool = SimulatedSource(it.log, KV, worker_id(1))
    pool.append([replace(pool_joined("pool", worker_id(0), model=MODEL), block_size=BLOCK_SIZE)])
    hashes = Prompt(tokens_to_bytes(range(100)), BLOCK_SIZE, 7).hashes()
    for source, blocks, tier in ((worker, on_device, "device"), (pool, on_disk, "disk")):
        if blocks:
            source.append([BlocksStored(hashes=hashes[: 8 * blocks], tier=tier)])
    it.ticks(1_000_000)
    it.arrive("one", 100)
    it.ticks()
    (sent,) = it.done(Send)
    assert isinstance(sent, Send)
    assert sent.hint.pool_tokens == told * BLOCK_SIZE


@pytest.mark.parametrize("late", [None, 12])
def test_cached_tokens_may_come_late_or_never(late: int | None) -> None:
    """They are unknown in the log until then, and never 0; the price is learned as if the prediction had been right."""
    it = Scheduling(RoutingSettings(policy="time"), workers=0)
    source, hashes = Scheduling.join(it.log, 0), Prompt(tokens_to_bytes(range(20)), BLOCK_SIZE, 7).hashes()
    source.append([BlocksStored(hashes=hashes, tier="device")])
    it.ticks(1_000_000)
    noted: list[int] = []
    it.scheduler.learned.note = lambda _model, tokens, *_times: noted.append(tokens)  # type: ignore[method-assign]
    asked = it.arrive("one")
    it.ticks()
    it.output(asked, 1)
    it.output(asked, 2, finish="stop", cached_tokens=late)
    (routed,), (prefilled,) = it.published(RequestRouted), it.published(RequestPrefilled)
    (finished,) = it.published(RequestFinished)
    assert isinstance(routed, RequestRouted)
    assert isinstance(prefilled, RequestPrefilled)
    assert isinstance(finished, RequestFinished)
    assert noted == [20 - routed.predicted_cached_tokens] == [4]
    assert (prefilled.cached_tokens, finished.cached_tokens) == (CACHED_UNKNOWN, late or CACHED_UNKNOWN)


def test_a_held_request_is_decided_by_the_price_that_is_learned_meanwhile() -> None:
    """Its input was made when it came; the record has the price of the decision."""
    it = Scheduling(HOLDING)
    long = it.arrive("long", 5000)
    assert long.phase is Phase.HELD
    it.scheduler.learned.time = lambda _model: PrefillTime(1000, 30_000)  # type: ignore[assignment, method-assign]
    it.ticks()
    (routed,) = it.published(RequestRouted)
    assert isinstance(routed, RequestRouted)
    assert routed.prefill_time == (1000, 30_000)


def test_a_held_request_waits_for_room_and_goes_when_an_answer_ends() -> None:
    """The worker has 1 000 blocks. The time that requests stay there is learned from one that took a second."""
    it = Scheduling(HOLDING)
    light = it.arrive("light", 300)
    it.ticks(1_000_000)
    it.output(light, 1, finish="stop")
    assert it.scheduler.residence.us(light.model) == 1_000_000
    large = it.arrive("large", 900 * BLOCK_SIZE)
    it.ticks()
    it.output(large, 1)
    beside = it.arrive("beside", 400 * BLOCK_SIZE, 50_000)
    it.ticks(500_000)
    assert (large.phase, beside.phase) == (Phase.RUNNING, Phase.HELD)
    it.output(large, 2, finish="stop")
    it.ticks()
    assert it.routed == ["light", "large", "beside"]


def test_the_next_turn_of_a_talk_needs_room_for_its_own_blocks_alone() -> None:
    """It comes while the answer before it flows on a worker that has no room for another talk."""
    it = Scheduling(HOLDING)
    light = it.arrive("light", 300)
    it.ticks(1_000_000)
    it.output(light, 1, finish="stop")
    first = it.arrive("first", 900 * BLOCK_SIZE)
    it.ticks()
    it.output(first, 1)
    turn = it.arrive("turn", 950 * BLOCK_SIZE)
    it.ticks(500_000)
    assert (first.phase, turn.phase) == (Phase.RUNNING, Phase.RUNNING)
    for each in (first, turn):
        it.output(each, 2, finish="stop")
    it.ticks()
    assert repr(it.scheduler.running_prompts) == "<RunningPrompts 0 on 0 workers>"


def test_a_request_that_is_held_no_longer_goes_where_there_is_room() -> None:
    """Its prompt is cached on the full worker. While it is held three tenths of the wait for room count, then all: it
    is computed elsewhere, and the wait stands in the record."""
    it = Scheduling(HOLDING, workers=0)
    source = Scheduling.join(it.log, 0)
    it.ticks()
    light = it.arrive("light", 300)
    it.ticks(2_000_000)
    it.output(light, 1, finish="stop")
    large = it.arrive("large", 900 * BLOCK_SIZE)
    it.ticks()
    it.output(large, 1)
    asked = range(5000, 5000 + 400 * BLOCK_SIZE)
    source.append([BlocksStored(hashes=Prompt(tokens_to_bytes(asked), BLOCK_SIZE, 7).hashes())])
    Scheduling.join(it.log, 1)
    it.ticks()
    beside = it.arrive("beside", len(asked), asked.start)
    it.ticks(HOLDING.hold_max_ms * 1000 - 1)
    assert (large.worker, beside.phase) == (worker_id(0), Phase.HELD)
    it.ticks(1)
    assert (beside.phase, beside.worker) == (Phase.RUNNING, worker_id(1))
    assert beside.routed is not None
    assert [*beside.routed.held] == [worker_id(0)]
    assert beside.routed.held[worker_id(0)] == 2_000_000 * (900 + 400 - 990) // 900


def test_a_declined_request_that_waits_in_vain_has_an_end() -> None:
    """The log's last word of it is not that a worker declined; nor has it a RequestQueued."""
    it = Scheduling(HOLDING)
    first = it.arrive("first", 5000)
    it.ticks()
    it.feed(AttemptBroke(first.id, 0, WorkerDeclined("5000")))
    it.ticks()
    assert (first.phase, first.declined) == (Phase.HELD, 1)
    it.hang_up(first)
    assert [event.outcome for event in it.published(RequestFinished)] == ["declined"]  # type: ignore[union-attr]
    assert [event.reason for event in it.published(RequestTurnedAway)] == ["client_gone"]  # type: ignore[union-attr]
    assert it.published(RequestQueued) == []
    assert len(it.scheduler.held) == 0


def test_a_decline_counts_until_the_worker_should_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """No longer; and after so many declines the request goes where it costs least."""
    monkeypatch.setattr(request_scheduler, "DECLINED_MAX", 2)
    it = Scheduling(RoutingSettings(policy="time", hold_max_ms=60_000, prefill_us_per_token_m=50_000))
    only = it.arrive("only", 5000)
    it.ticks()
    seen = [(only.phase, only.attempt)]
    for attempt in range(2):
        it.feed(AttemptBroke(only.id, attempt, WorkerDeclined("1000")))
        for wait_us in (49_000, 2_000):
            it.ticks(wait_us)
            seen.append((only.phase, only.attempt))
    running = [(Phase.RUNNING, 0), (Phase.HELD, 1), (Phase.RUNNING, 1), (Phase.RUNNING, 2), (Phase.RUNNING, 2)]
    assert seen == running


def test_a_decline_of_a_request_without_condition_is_the_loss_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a request that no worker can load the adapter of has an end."""
    monkeypatch.setattr(request_scheduler, "DECLINED_MAX", 2)
    it = Scheduling(RoutingSettings(policy="time", hold_max_ms=60_000))
    only = it.arrive("only")
    for attempt in range(10):
        if only.phase is Phase.ENDED:
            break
        it.feed(AttemptBroke(only.id, attempt, WorkerDeclined("the adapter sql@1 cannot be loaded")))
        it.ticks(10_000_000)
    outcomes = [event.outcome for event in it.published(RequestFinished)]  # type: ignore[union-attr]
    assert outcomes[:3] == ["declined", "declined", "worker_lost"]
    assert set(outcomes[2:]) == {"worker_lost"}
    assert only.phase is Phase.ENDED
    details = {event.detail for event in it.published(RequestFinished)}  # type: ignore[union-attr]
    assert details == {"the adapter sql@1 cannot be loaded"}


@pytest.mark.parametrize("policy", ["time", "session"])
def test_a_load_is_counted_where_an_adapter_is_cold(policy: str) -> None:
    """In the record of the decision, held or not, with what is left of it for the next request; a first token behind
    it teaches no price."""
    it = Scheduling(RoutingSettings(policy=policy), workers=0)
    for number, changes in enumerate(([], [AdapterEvicted(name="sql", digest="01")])):
        source = Scheduling.join(it.log, number)
        source.append([AdapterLoaded(name="sql", digest="01", rank=8, loaded_ms=1), *changes])
    it.ticks(1_000_000)
    noted: list[int] = []
    it.scheduler.learned.note = lambda _model, tokens, *_times: noted.append(tokens)  # type: ignore[method-assign]
    first = it.arrive("first", adapter="sql@01")
    it.ticks()
    assert first.routed is not None
    assert (first.worker, first.routed.held) == (worker_id(0), {worker_id(1): LOAD_US})
    it.output(first, 1, finish="stop")
    assert noted == [20]
    plain = it.arrive("plain")
    it.ticks()
    assert plain.routed is not None
    assert plain.routed.held == {}


def test_a_request_that_waits_for_a_load_teaches_no_price() -> None:
    """Its first token comes late, and the next request for the adapter finds the load under way."""
    it = Scheduling(RoutingSettings(policy="time"), workers=0)
    source = Scheduling.join(it.log, 0)
    source.append([AdapterLoaded(name="sql", digest="01", rank=8, loaded_ms=1)])
    source.append([AdapterEvicted(name="sql", digest="01")])
    it.ticks(1_000_000)
    noted: list[int] = []
    it.scheduler.learned.note = lambda _model, tokens, *_times: noted.append(tokens)  # type: ignore[method-assign]
    first = it.arrive("first", adapter="sql@01")
    it.ticks(LOAD_US // 5)
    second = it.arrive("second", adapter="sql@01")
    it.ticks()
    assert first.routed is not None
    assert second.routed is not None
    assert first.routed.held == {worker_id(0): LOAD_US}
    assert second.routed.held == {worker_id(0): LOAD_US - LOAD_US // 5}
    it.output(first, 1, finish="stop")
    assert noted == []
    source.append([AdapterLoaded(name="sql", digest="01", rank=8, loaded_ms=1)])
    it.output(second, 1, finish="stop")
    it.ticks(1_000_000)
    third = it.arrive("third", adapter="sql@01")
    it.ticks()
    assert third.routed is not None
    assert third.routed.held == {}
    it.output(third, 1, finish="stop")
    assert len(noted) == 1
    source.append([AdapterEvicted(name="sql", digest="01")])
    it.ticks(1_000_000)
    fourth = it.arrive("fourth", adapter="sql@01")
    it.ticks()
    assert fourth.routed is not None
    assert 0.75 * LOAD_US < fourth.routed.held[worker_id(0)] < LOAD_US  # the first one's took a fifth


def test_the_time_stands_while_a_clock_is_set_back_once_a_request_has_read_it() -> None:
    """By a second at most; before the first request it goes back at once, and by more it does at any time."""
    it = Scheduling()

    def decided_ms(name: str, *offsets_ms: int) -> int:
        for offset_ms in offsets_ms:
            it.feed(ClockCorrected(offset_ms))
        routed = it.arrive(name).routed
        assert routed is not None
        it.output(it.scheduler.requests[RequestId(name)], 1, finish="stop")
        it.ticks()
        return routed.now_ms

    assert decided_ms("first", 5_000, 4_000) == 4_000
    assert decided_ms("second", 3_000) == 4_000
    assert decided_ms("third", 2_999) == 2_999


def test_a_restatement_names_what_the_fold_would_have() -> None:
    """Worker, weight, and when each prefill was expected to begin; nothing of the latter once it is done."""
    it = Scheduling(RoutingSettings(policy="kv", active_max=8))
    waiting, done = it.arrive("waiting"), it.arrive("done")
    it.output(done, 1)
    assert waiting.routed is not None
    assert done.routed is not None
    told = dict(restated_requests(it.scheduler.restatement("test")))
    assert told[waiting.id, 0].begins_us == in_flight(waiting.routed).begins_us
    assert told[done.id, 0] == in_flight(done.routed).prefilled()


def test_the_log_has_an_error_where_the_last_output_cannot_continue_the_answer() -> None:
    """Not a success that the client never saw."""
    it = Scheduling(workers=2)
    one = it.arrive("one")
    one.answer.compares = True  # type: ignore[attr-defined]  # as for an answer that carries state
    it.output(one, 5, 6)
    it.feed(AttemptBroke(one.id, 0, WorkerDisconnected("gone")))
    it.ticks()
    it.output(one, 5, 7, finish="stop")
    outcomes = [event.outcome for event in it.published(RequestFinished)]  # type: ignore[union-attr]
    assert outcomes == ["worker_lost", "error"]
    (failed,) = it.done(Fail)
    assert isinstance(cast(Fail, failed).error, GenerationFailed)


def test_a_defect_of_one_decision_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller gets the error; the slot is free, and others are served."""
    it = Scheduling()
    monkeypatch.setattr(request_scheduler, "decide_newest", lambda *_: 1 / 0)
    it.arrive("unlucky")
    (failed,) = it.done(Fail)
    assert isinstance(cast(Fail, failed).error, ZeroDivisionError)
    monkeypatch.undo()
    assert it.arrive("next").phase is Phase.RUNNING


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "long", "token", "end", "break", "leave", "decline", "refuse", "stop", "hang up",
                         "load", "tick", "later"]),
        st.integers(0, 5),
    ),
    max_size=60,
)  # fmt: skip


def _event(kind: str, of: RoutedRequest, now_us: int) -> SchedulerEvent:
    errors = {
        "break": WorkerDisconnected("gone"), "leave": WorkerLeaving("leaves"), "decline": WorkerDeclined("900"),
        "refuse": CallerError("too long"),
    }  # fmt: skip
    if kind in errors:
        return AttemptBroke(of.id, of.attempt, errors[kind])
    if kind == "stop":
        return ReaderStopped(of.id, "stop")
    if kind == "hang up":
        return ClientGone(of.id, "client_gone", "abort")
    if kind == "load":
        return LoadChanged()
    return OutputArrived(of.id, of.attempt, Output(tokens=(1,), finish="stop" if kind == "end" else None), now_us)


@given(EVENTS, st.sampled_from([HOLDING, RoutingSettings(policy="kv", active_max=1, queue_max=3)]))
@settings(deadline=None, max_examples=150)
def test_whatever_happens_every_request_has_one_end_and_every_decision_one(
    happened: list[tuple[str, int]], by: RoutingSettings
) -> None:
    """One phase and one place for each request, one decision in a step at most, no output behind the end; and when all
    have ended nothing is left of them."""
    it = Scheduling(by, workers=2)
    requests: list[RoutedRequest] = []
    hung_up = set[str]()
    for number, (kind, which) in enumerate(happened):
        if kind in {"arrive", "long"}:
            requests.append(it.arrive(f"r{number}", 3000 if kind == "long" else 20, tenant=f"t{which}"))
        elif kind in {"tick", "later"}:
            it.ticks(which * (300_000 if kind == "later" else 0))
        elif requests:
            of = requests[which % len(requests)]
            if kind == "hang up" and of.phase is not Phase.ENDED:
                hung_up.add(of.id)
            published = [
                each.event for each in it.feed(_event(kind, of, it.agenda.now_us)) if isinstance(each, Publish)
            ]
            made = sum(isinstance(event, RequestRouted) for event in published)
            assert made == 0 or not any(isinstance(event, RequestFinished) for event in published)
            assert made <= 1
        _check(it, requests)
    it.feed(Draining())
    it.ticks(10_000_000)
    for each in requests:
        if each.phase is not Phase.ENDED:
            hung_up.add(each.id)
            it.hang_up(each)
    ended = [each.request.id for each in it.commands if isinstance(each, Complete | Fail)]
    assert len(ended) == len(set(ended))
    assert {each.id for each in requests} == set(ended) | hung_up
    routed = [(event.request, event.attempt) for event in it.published(RequestRouted)]  # type: ignore[union-attr]
    finished = [(event.request, event.attempt) for event in it.published(RequestFinished)]  # type: ignore[union-attr]
    assert sorted(routed) == sorted(finished)
    assert len(it.done(Send)) == len(routed)
    assert not it.scheduler.requests
    assert not len(it.scheduler.held)
    for queue in it.scheduler._queues.values():
        assert (queue.active, queue.admitted, len(queue.fair_queue)) == (0, 0, 0)
    assert all(kind in {"plan", "refresh"} for kind, _ in it.scheduler._timers._by_key)


def _check(it: Scheduling, requests: list[RoutedRequest]) -> None:
    """Each is where its phase says, and nowhere else."""
    queues = it.scheduler._queues.values()
    for each in requests:
        queued = any(each in queue.fair_queue for queue in queues)
        assert queued == (each.phase is Phase.QUEUED)
        assert (each in it.scheduler.held) == (each.phase is Phase.HELD)
        assert (each.routed is not None) == (each.phase is Phase.RUNNING)
        assert (each.id in it.scheduler.requests) == (each.phase is not Phase.ENDED)
    with_slot = sum(each.slot_since_us >= 0 for each in requests)
    assert sum(queue.active for queue in queues) == with_slot


def test_nothing_comes_of_events_that_come_too_late() -> None:
    """Of an attempt that is over, or of a request that has ended."""
    it = Scheduling(workers=2)
    one = it.arrive("one")
    it.feed(AttemptBroke(one.id, 0, WorkerDisconnected("gone")))
    it.ticks()
    assert one.attempt == 1
    assert it.feed(AttemptBroke(one.id, 0, WorkerDisconnected("again"))) == []
    assert it.feed(OutputArrived(one.id, 0, Output(tokens=(1,)), 0)) == []
    it.output(one, 1, finish="stop")
    for late in (
        ReaderStopped(one.id, "stop"),
        ClientGone(one.id, "client_gone", "abort"),
        OutputArrived(one.id, 1, Output(), 0),
    ):
        assert it.feed(late) == []


def test_without_any_worker_the_request_does_not_wait() -> None:
    """The decision says why."""
    it = Scheduling(workers=0)
    it.arrive("alone")
    (failed,) = it.done(Fail)
    assert isinstance(cast(Fail, failed).error, NoWorkers)


def test_a_request_waits_for_the_join_of_a_connected_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has lost the join: the request is sent once the worker has restated itself, and no refusal is logged."""
    it = Scheduling(workers=0)
    monkeypatch.setattr(it.replica, "awaits_join", lambda model: model == "sim")
    waiting = it.arrive("waiting")
    phases = [waiting.phase]
    it.join(it.log, 0)
    it.ticks(request_scheduler.RETRY_US)
    assert [*phases, waiting.phase] == [Phase.WAITING, Phase.RUNNING]
    assert (it.published(RequestRejected), it.done(Fail)) == ([], [])


@pytest.mark.parametrize(("deadline_ms", "bound_us"), [(None, request_scheduler.JOIN_WAIT_US), (300, 300_000)])
def test_a_request_waits_so_long_for_a_join(
    monkeypatch: pytest.MonkeyPatch, deadline_ms: int | None, bound_us: int
) -> None:
    """Then it is refused, once."""
    it = Scheduling(workers=0)
    monkeypatch.setattr(it.replica, "awaits_join", lambda _: True)
    waiting = it.arrive("waiting", deadline_ms=deadline_ms)
    it.ticks(bound_us - 1)
    phases = [waiting.phase]
    it.ticks(1 + request_scheduler.RETRY_US)
    assert [*phases, waiting.phase] == [Phase.WAITING, Phase.ENDED]
    assert len(it.published(RequestRejected)) == len(it.done(Fail)) == 1


def test_without_any_worker_the_request_waits_where_a_planner_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the requests that wait, in their order. The first worker gets them as soon as it has joined."""
    it = Scheduling(workers=0)
    monkeypatch.setattr(it.replica, "starts_from_zero", lambda model: model == "sim")
    both = [it.arrive("first"), it.arrive("second")]
    assert [each.phase for each in both] == [Phase.QUEUED] * 2
    queued = cast(list[RequestQueued], it.published(RequestQueued))
    assert [(each.request, each.why, each.depth) for each in queued] == [
        ("first", "no_worker", 0),
        ("second", "behind", 1),
    ]
    it.join(it.log, 0)
    it.ticks(request_scheduler.REFRESH_EVERY_US)
    assert [each.phase for each in both] == [Phase.RUNNING, Phase.QUEUED], "the worker has one slot"
    assert it.done(Fail) == []


@pytest.mark.parametrize(
    ("deadline_ms", "bound_ms", "error"), [(None, 30_000, Overloaded), (300, 300, DeadlineExceeded)]
)
def test_a_request_waits_so_long_for_the_first_worker(
    monkeypatch: pytest.MonkeyPatch, deadline_ms: int | None, bound_ms: int, error: type[Exception]
) -> None:
    """As long as in any queue."""
    it = Scheduling(workers=0)
    monkeypatch.setattr(it.replica, "starts_from_zero", lambda _: True)
    waiting = it.arrive("waiting", deadline_ms=deadline_ms)
    it.ticks(1000 * bound_ms - 1)
    phases = [waiting.phase]
    it.ticks(1)
    assert [*phases, waiting.phase] == [Phase.QUEUED, Phase.ENDED]
    (failed,) = it.done(Fail)
    assert isinstance(cast(Fail, failed).error, error)


def test_as_many_wait_for_the_first_worker_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow answers of before make the queue of a busy fleet short, and not this one."""
    it = Scheduling(RoutingSettings(policy="kv", active_max=1, queue_max=3))
    monkeypatch.setattr(it.replica, "starts_from_zero", lambda _: True)
    before = it.arrive("before")
    it.ticks(20_000_000)
    it.output(before, 1, finish="stop")
    it.gone.add(WorkerId(worker_id(0)))
    waiting = [it.arrive(f"waiting {number}") for number in range(3)]
    assert [each.phase for each in waiting] == [Phase.QUEUED] * 3
    assert it.arrive("one more").phase is Phase.ENDED


def test_a_request_whose_only_worker_ended_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has that it waits: a planner counts it."""
    it = Scheduling()
    monkeypatch.setattr(it.replica, "starts_from_zero", lambda _: True)
    lost = it.arrive("lost")
    it.gone.add(WorkerId(worker_id(0)))
    it.feed(AttemptBroke(lost.id, 0, WorkerLeaving("it ends")))
    it.ticks(request_scheduler.RETRY_US)
    assert lost.phase is Phase.WAITING
    it.ticks(5_000_000)
    assert [(each.why, each.depth) for each in cast(list[RequestQueued], it.published(RequestQueued))] == [
        ("no_worker", 0)
    ]
    it.join(it.log, 1)
    it.ticks(request_scheduler.RETRY_US)
    assert (lost.phase, it.done(Fail)) == (Phase.RUNNING, [])


def test_a_begun_answer_waits_for_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client would have nothing for as long as a worker starts."""
    it = Scheduling()
    monkeypatch.setattr(it.replica, "starts_from_zero", lambda _: True)
    begun = it.arrive("begun")
    it.output(begun, 1)
    it.gone.add(WorkerId(worker_id(0)))
    it.feed(AttemptBroke(begun.id, 0, WorkerDisconnected("it died")))
    it.ticks(request_scheduler.RESUME_WAIT_US + 2 * request_scheduler.RETRY_US)
    assert begun.phase is Phase.ENDED
