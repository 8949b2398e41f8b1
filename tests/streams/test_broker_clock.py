"""The broker's time as one process estimates it: round trips, drift, steps, and a broker that is not believed."""

from __future__ import annotations

import random

import pytest

from streams.broker_clock import NOTED_MS, OFFSET_MAX_MS, RESOLUTION_US, SAMPLES_KEPT, BrokerClock

START_US = 1_767_225_600_000_000
SECOND_US = 1_000_000


class Host:
    """A machine whose clocks are off; `true_us` is the broker's time."""

    def __init__(self, ahead_ms: int = 0, drift_ppm: int = 0) -> None:
        self.true_us = START_US
        self.ahead_ms = ahead_ms
        self.drift_ppm = drift_ppm

    def wall_ms(self) -> int:
        return (START_US + self.monotonic_us()) // 1000 + self.ahead_ms

    def monotonic_ms(self) -> int:
        return self.monotonic_us() // 1000

    def monotonic_us(self) -> int:
        passed_us = self.true_us - START_US
        return passed_us + passed_us * self.drift_ppm // 1_000_000

    def monotonic_ns(self) -> int:
        return self.monotonic_us() * 1000


def sample(host: Host, clock: BrokerClock, there_us: int = 200, back_us: int = 200, broker_ahead_ms: int = 0) -> None:
    """One exchange with the broker."""
    sent_us = host.monotonic_us()
    host.true_us += there_us
    broker_us = host.true_us + broker_ahead_ms * 1000
    host.true_us += back_us
    clock.add(sent_us, broker_us, host.monotonic_us())


def error_ms(host: Host, clock: BrokerClock) -> float:
    return clock.wall_ms() - host.true_us / 1000


@pytest.mark.parametrize("ahead_ms", [0, 100, -100, 1000, -1000, 60_000, -60_000, 3_600_000, -3_600_000, 50_000_000])
def test_one_sample_corrects_any_offset_to_half_a_round_trip(ahead_ms: int) -> None:
    host = Host(ahead_ms)
    clock = BrokerClock(host)
    assert clock.wall_ms() == host.wall_ms()
    assert not clock.is_known
    assert clock.offset_ms == 0
    sample(host, clock)
    assert abs(error_ms(host, clock)) <= 2
    assert abs(clock.offset_ms - ahead_ms) <= 2
    assert clock.wall_offset_ms == clock.wall_ms() - clock.monotonic_ms()


def test_the_shortest_round_trip_of_the_window_bounds_the_error() -> None:
    host = Host(1000)
    clock = BrokerClock(host)
    sample(host, clock, there_us=300_000, back_us=1000)
    assert 100 < abs(error_ms(host, clock)) < 200
    sample(host, clock, there_us=500, back_us=500)
    assert abs(error_ms(host, clock)) <= 2
    for _ in range(SAMPLES_KEPT - 2):
        host.true_us += 5 * SECOND_US
        sample(host, clock, there_us=300_000, back_us=1000)
    assert abs(error_ms(host, clock)) <= 25  # the drift that 30 s allow, no more
    assert clock.steps == 0


@pytest.mark.parametrize("drift_ppm", [-200, 200, 500])
def test_drift_is_followed(drift_ppm: int) -> None:
    host, chance = Host(drift_ppm=drift_ppm), random.Random(1)
    clock = BrokerClock(host)
    for _ in range(2000):
        sample(host, clock, chance.randrange(5000), chance.randrange(5000))
        assert abs(error_ms(host, clock)) <= 8
        host.true_us += 5 * SECOND_US
        assert abs(error_ms(host, clock)) <= 12
    assert clock.steps == 0
    assert abs(clock.offset_ms - drift_ppm * 10) <= 15  # 10 000 s


@pytest.mark.parametrize("step_ms", [-3_600_000, -1000, -100, 100, 60_000])
def test_a_step_of_the_own_wall_clock_changes_nothing_but_the_offset(step_ms: int) -> None:
    host = Host()
    clock = BrokerClock(host)
    sample(host, clock)
    before = clock.wall_ms()
    host.ahead_ms += step_ms
    assert clock.wall_ms() == before
    assert abs(clock.offset_ms - step_ms) <= 2
    sample(host, clock)
    assert clock.steps == 0


@pytest.mark.parametrize("step_ms", [-3_600_000, -1000, 100, 60_000])
def test_a_step_of_the_broker_is_followed_at_the_next_sample(step_ms: int) -> None:
    host = Host()
    clock = BrokerClock(host)
    for _ in range(SAMPLES_KEPT):
        sample(host, clock)
    sample(host, clock, broker_ahead_ms=step_ms)
    assert clock.steps == 1
    assert abs(error_ms(host, clock) - step_ms) <= 2
    sample(host, clock, broker_ahead_ms=step_ms)
    assert clock.steps == 1


def test_a_broker_that_is_more_than_the_bound_off_is_not_believed() -> None:
    host = Host()
    clock = BrokerClock(host)
    sample(host, clock, broker_ahead_ms=OFFSET_MAX_MS - 10)
    assert clock.is_known
    sample(host, clock, broker_ahead_ms=0)
    before = clock.wall_offset_ms
    sample(host, clock, broker_ahead_ms=-OFFSET_MAX_MS - 10)
    told = str(clock.describe()["refused"])
    assert told == (
        "the broker's clock and this machine's are more than 24 h apart: set both by NTP; until then decisions do not "
        "follow the broker's time"
    )
    assert clock.wall_offset_ms == before
    sample(host, clock)
    assert clock.describe()["refused"] == ""


def test_small_offsets_are_not_noted() -> None:
    host = Host(NOTED_MS + 3)
    clock = BrokerClock(host)
    assert clock.noted_offset_ms == 0
    sample(host, clock)
    assert clock.noted_offset_ms >= NOTED_MS
    host.ahead_ms = NOTED_MS - 3
    assert clock.noted_offset_ms == 0
    host.ahead_ms = -NOTED_MS - 3
    assert clock.noted_offset_ms <= -NOTED_MS
    for noted_ms in (NOTED_MS, -NOTED_MS):
        host.ahead_ms += noted_ms - clock.offset_ms
        assert clock.noted_offset_ms == noted_ms


def test_a_time_cut_off_to_milliseconds_is_within_the_bounds() -> None:
    host = Host()
    clock = BrokerClock(host)
    for at_us in range(0, 3000, 10):
        host.true_us = START_US + at_us
        clock.add(at_us, host.true_us // RESOLUTION_US * RESOLUTION_US, at_us)
    assert clock.steps == 0
