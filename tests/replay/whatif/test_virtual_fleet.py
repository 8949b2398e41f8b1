"""The modelled answer of a fleet to decisions."""

from __future__ import annotations

from replay.whatif.virtual_fleet import VirtualFleet

STARTUP_MS = 10_000


def test_an_ordered_worker_is_ready_after_its_start_up_time() -> None:
    """It takes devices from its order on."""
    fleet = VirtualFleet(1, 0, 0, STARTUP_MS)
    fleet.resize(3, 0, STARTUP_MS)
    fleet.advance(STARTUP_MS - 1)
    early = fleet.ready, fleet.starting, fleet.workers

    fleet.advance(STARTUP_MS)

    assert early == (1, 2, 3)
    assert (fleet.ready, fleet.starting, fleet.started, fleet.drained) == (3, 0, 2, 0)


def test_the_newest_start_is_cancelled_before_a_worker_drains() -> None:
    fleet = VirtualFleet(2, 0, 0, STARTUP_MS)
    fleet.resize(3, 0, STARTUP_MS)
    fleet.resize(4, 5_000, STARTUP_MS)

    fleet.resize(3, 6_000, STARTUP_MS)
    fleet.advance(STARTUP_MS)
    kept = fleet.ready, fleet.starting
    fleet.resize(1, 12_000, STARTUP_MS)

    assert kept == (3, 0)
    assert (fleet.ready, fleet.started, fleet.drained) == (1, 2, 2)


def test_a_shorter_start_up_time_overtakes_an_earlier_order() -> None:
    fleet = VirtualFleet(0, 1, 0, 60_000)
    fleet.resize(2, 5_000, 1_000)

    fleet.advance(6_000)

    assert (fleet.ready, fleet.starting) == (1, 1)
