"""Decode and prefill workers that a planner sizes together, in virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from msgspec import UNSET

from api.debug.planner_view import planner_decision, planner_rows
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL
from core.events.scale import (
    CapacityLearned,
    DemandRolled,
    PrefillDemand,
    ScaleApplied,
    ScaleDecided,
    ScaleEvent,
    role_of,
)
from core.ids import RequestId
from core.settings import RoutingSettings
from core.subjects import SCALE
from projections.scaling.scale_settings import ScaleSettings
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.report import ScalingReport
from replay.simulate.setup import scaling_of
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.workload import Arrival
from replay.verify.scale_checks import ScaleResult, verify_scale
from replay.whatif.scale_figures import ScaleWhatIf
from replay.whatif.scale_rerun import read_range, what_if_scale
from streams.archive.archive_log import ArchiveLog
from tests.replay.simulate.planned import ENGINE, arrivals

SETTINGS = ScaleSettings(startup_s=10, down_window_s=20, max=8)
LONG = arrivals((20, 2), (40, 12), (70, 2), prompt_blocks=40)
"""A prompt takes 256 ms, so twelve a second are the work of three prefill workers, and two of half a one."""


def planned(
    requests: list[Arrival], archive: Path, settings: ScaleSettings = SETTINGS, workers: int = 1, prefill: int = 1
) -> tuple[SimulationResult, ScalingReport]:
    """The run of a fleet that begins with so many workers of both roles, and its figures."""
    options = Options(workers=workers, prefill_workers=prefill, engine=ENGINE, planner=settings)
    found = simulate(options, requests, archive=archive)
    figures = scaling_of(options, found)
    assert figures is not None
    return found, figures


def messages(log: Path) -> list[list[ScaleEvent]]:
    """The events of each message of the planner."""
    with Recording.open(log, KEY) as recording:
        return [
            [event for event in message.events if isinstance(event, ScaleEvent)]
            for _, message in recording.messages(SCALE)
        ]


def decisions(log: Path, role: str) -> list[ScaleDecided]:
    """The decisions on workers of that role."""
    events = [event for message in messages(log) for event in message]
    return [event for event in events if isinstance(event, ScaleDecided) and role_of(event) == role]


def verified(log: Path) -> ScaleResult:
    """All decisions and periods, made and counted again."""
    with Recording.open(log, KEY) as recording:
        found = verify_scale(recording)
    assert found is not None
    return found


def test_long_prompts_size_the_prefill_workers(tmp_path: Path) -> None:
    """Steps of a decode worker bear them all, so decode workers stay. Behind the burst one prefill worker more stays:
    with one, which prompts keep busy for half of the time, too many of them would wait. Transfers that waited for slots
    of the decode worker in the burst took seconds. In a quiet period they take 25 ms, and the known one stays there."""
    found, figures = planned(LONG, tmp_path / "log")

    assert not any(each.why for each in found.served)
    prefill = [each.target for each in decisions(tmp_path / "log", PREFILL)]
    assert (prefill[0], prefill[-1]) == (1, 2)
    assert max(prefill) >= 3
    assert max(each.target for each in decisions(tmp_path / "log", DECODE)) == 1
    assert figures.starts == figures.stops + 1 >= 3
    learned = [
        event for message in messages(tmp_path / "log") for event in message if isinstance(event, CapacityLearned)
    ]
    transfers_us = [event.transfer_us for event in learned if isinstance(event.transfer_us, int)]
    assert all(20_000 < each < 30_000 for each in transfers_us)
    assert len(transfers_us) == 3
    result = verified(tmp_path / "log")
    assert result.verified == result.decisions == 2 * result.periods > 0
    assert result.periods_verified == result.periods


def test_roles_change_places_under_one_bound(tmp_path: Path) -> None:
    """Long prompts first, then many steps in few slots, on four devices. One moves by a drain and an order in one
    message, and the new worker is ready after its start-up time. Each request is served."""
    settings = ScaleSettings(startup_s=5, down_window_s=15, max=4, devices_max=4, ttft_ms=3_000, itl_ms=25)
    options = Options(
        workers=1,
        prefill_workers=3,
        engine=dataclasses.replace(ENGINE, max_seqs=4),
        planner=settings,
        routing=RoutingSettings(queue_wait_max_ms=120_000),
    )
    steps = arrivals((80, 4), prompt_blocks=4, output=200)
    later = [each._replace(id=RequestId(f"b-{each.id}"), at_us=each.at_us + 40_000_000) for each in steps]
    found = simulate(options, [*arrivals((40, 2), prompt_blocks=130, output=4), *later], archive=tmp_path / "log")

    assert not any(each.why for each in found.served)
    both = [
        ([event for event in message if isinstance(event, ScaleDecided)], message)
        for message in messages(tmp_path / "log")
        if any(isinstance(event, ScaleDecided) for event in message)
    ]
    sizes = [tuple(each.target for each in decided) for decided, _ in both]
    assert all(sum(each) <= 4 for each in sizes)
    assert {each.budget for decided, _ in both for each in decided} == {4}
    moves = [number for number in range(1, len(sizes)) if sizes[number - 1] == (1, 3) and sizes[number] == (2, 2)]
    assert len(moves) == 1
    at_ms, message = both[moves[0]][0][0].at_ms, both[moves[0]][1]
    applied = [(role_of(each), each.started, each.drained) for each in message if isinstance(each, ScaleApplied)]
    assert applied == [(DECODE, 1, 0), (PREFILL, 0, 1)]
    ready = next(decided[0].at_ms for decided, _ in both[moves[0] :] if decided[0].ready == 2)
    assert ready - at_ms == settings.startup_s * 1000
    result = verified(tmp_path / "log")
    assert (result.verified, result.differ) == (result.decisions, 0)


def test_a_prediction_of_prefill_workers_knows_the_transfer(tmp_path: Path) -> None:
    """It is observed from the first period on, and recorded with their speed."""
    planned(arrivals((70, 3), prompt_blocks=40), tmp_path / "log")

    learned = [
        event
        for message in messages(tmp_path / "log")
        for event in message
        if isinstance(event, CapacityLearned) and role_of(event) == PREFILL
    ]
    assert learned[0].transfer_us is UNSET
    assert isinstance(learned[-1].transfer_us, int)
    assert 10_000 <= learned[-1].transfer_us < 100_000
    demand = [event for message in messages(tmp_path / "log") for event in message if isinstance(event, DemandRolled)]
    assert all(isinstance(each.prefill_demand, PrefillDemand) for each in demand)


def test_both_roles_are_decided_once_their_speed_is_learned(tmp_path: Path) -> None:
    """From requests of decode workers and from the jobs of prefill workers: a prompt of 2 560 tokens takes 256 ms."""
    options = Options(workers=1, prefill_workers=1, engine=ENGINE, planner=SETTINGS, learns=True)
    requests = arrivals((20, 2), (25, 12), prompt_blocks=40)
    simulate(options, requests, archive=tmp_path / "log")

    events = [event for message in messages(tmp_path / "log") for event in message]
    learned = [event for event in events if isinstance(event, CapacityLearned) and role_of(event) == PREFILL]
    tokens = 40 * ENGINE.block_size
    assert learned[0].prefill_us[0] == pytest.approx(256_000 // tokens, rel=0.05)
    prefill = [each.target for each in decisions(tmp_path / "log", PREFILL)]
    assert 0 < len(prefill) < sum(isinstance(event, DemandRolled) for event in events)
    assert max(prefill) >= 3
    assert len(decisions(tmp_path / "log", DECODE)) > 0
    assert verified(tmp_path / "log").differ == 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"prefill_workers": 9}, "planner.prefill: prefill workers, 9"),
        ({"prefill_scale": (("itl_ms", 20),)}, "planner.prefill.itl_ms"),
        ({"prefill_scale": (("max", 0),)}, "planner.max"),
        ({"prefill_workers": 0, "prefill_scale": (("max", 2),)}, "there are no prefill workers"),
        ({"planner": ScaleSettings(devices_max=1)}, "planner.devices_max: 1 are fewer"),
        ({"planner": ScaleSettings(judge="on")}, "planner.judge"),
    ],
)
def test_roles_that_cannot_be_planned_are_refused(given: dict[str, object], named: str) -> None:
    """With the reason."""
    with pytest.raises(CallerError, match=named):
        Options(**{"workers": 1, "prefill_workers": 1, "planner": SETTINGS, **given})  # type: ignore[arg-type]


def test_equal_runs_are_equal(tmp_path: Path) -> None:
    """Byte by byte."""
    short = arrivals((20, 4), prompt_blocks=40)
    digests = {planned(short, tmp_path / name)[0].digest for name in ("one", "two")}

    assert len(digests) == 1
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_decision_on_either_role_is_explained(tmp_path: Path) -> None:
    """Both stand in one message, and each is made again beside the other. Without a role, decode workers are meant."""
    planned(arrivals((30, 4), prompt_blocks=40), tmp_path / "log", ScaleSettings(startup_s=10, devices_max=4))
    with Recording.open(tmp_path / "log", KEY) as recording:
        rows = planner_rows(recording, 0)["rows"]
        found = {role: planner_decision(recording, 3, None, role) for role in (None, DECODE, PREFILL)}

    assert [row.get("role") for row in rows[:2]] == [None, PREFILL]
    assert [found[role]["decided"].get("role") for role in (None, DECODE, PREFILL)] == [None, None, PREFILL]
    assert {each["verdict"] for each in found.values()} == {"equal"}


def test_a_role_alone_is_decided_again(tmp_path: Path) -> None:
    """What-if takes the prefill workers' part of the demand: twice as slow a goal needs no more of them."""
    planned(arrivals((20, 2), (40, 12), prompt_blocks=40), tmp_path / "log")

    async def asked(role: str) -> ScaleWhatIf:
        with Recording.open(tmp_path / "log", KEY) as recording:
            return what_if_scale(await read_range(ArchiveLog(recording.archive), None, None, role=role), [], 1)

    found = {role: asyncio.run(asked(role)) for role in (DECODE, PREFILL)}

    most = {role: max(each.target for each in it.recorded.sizes) for role, it in found.items()}
    assert (most[DECODE], most[PREFILL] >= 3) == (1, True)
