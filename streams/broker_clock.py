"""BrokerClock: the broker's time, as one process estimates it. Times that other processes read are on this scale.

1. A sample is one exchange with the broker: sent, answered with the broker's time, received. The broker's clock less
   the monotonic one lies between (time - received) and (time - sent): no assumption about the way there and back.
2. The samples of a window are intersected, each widened by the drift that its age allows. So the shortest round trip
   bounds the error. A sample that contradicts the newest one is older than a step of a clock, and is dropped.
3. The wall clock has no part in it: a step of it changes nothing. It is read until the first sample, and to report how
   far it is off.
4. A broker whose time is further off than OFFSET_MAX_MS is not believed: the estimate stays as it was.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from core.clock import Clock

SAMPLES_KEPT = 8
"""Bound of the window of samples."""
DRIFT_PPM = 1000
"""Bound on how fast two clocks drift apart: each is slewed by 500 millionths at most."""
OFFSET_MAX_MS = 86_400_000
"""A day. Mistaken time zones are off by up to 14 h, and are corrected; an unset clock is off by years, and is not."""
RESOLUTION_US = 1000
"""The broker's time may be cut off to whole milliseconds."""
NOTED_MS = 10
"""An offset of less counts as none where it is recorded: round trips bound it no better."""


class _Sample(NamedTuple):
    """The broker's clock less the monotonic one lies between `low_us` and `high_us`."""

    low_us: int
    high_us: int
    at_us: int
    """When the answer was received."""


class BrokerClock:
    """A clock with the broker's time as its wall clock; the wall clock of this machine until a sample is known."""

    def __init__(self, clock: Clock) -> None:
        self.refused = ""
        """A sentence while the last sample is not believed."""
        self.steps = 0
        """Times that a sample contradicted the one before it: a clock stepped, or another server leads the stream."""
        self.monotonic_ms = clock.monotonic_ms
        self.monotonic_us = clock.monotonic_us
        self.monotonic_ns = clock.monotonic_ns
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_KEPT)
        self._lead_us: int | None = None
        """The broker's clock less the monotonic one."""
        self._error_us = 0

    def __repr__(self) -> str:
        return f"<BrokerClock {self.offset_ms} ms ahead, {len(self._samples)} samples>"

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by the broker's clock; may jump with a correction."""
        if self._lead_us is None:
            return self._clock.wall_ms()
        return (self._lead_us + self.monotonic_ns() // 1000) // 1000  # the cheapest to ask

    @property
    def wall_offset_ms(self) -> int:
        """`wall_ms` less the monotonic clock."""
        return self.wall_ms() - self.monotonic_ms() if self._lead_us is None else self._lead_us // 1000

    @property
    def is_known(self) -> bool:
        """True once the broker's time is known."""
        return self._lead_us is not None

    @property
    def offset_ms(self) -> int:
        """This machine's wall clock less the broker's; 0 while that is not known."""
        return 0 if self._lead_us is None else self._clock.wall_ms() - self.wall_ms()

    @property
    def noted_offset_ms(self) -> int:
        """The offset as events record it: 0 below NOTED_MS."""
        offset_ms = self.offset_ms
        return offset_ms if abs(offset_ms) >= NOTED_MS else 0

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        return {
            "known": self.is_known,
            "offset_ms": self.offset_ms,
            "error_ms": self._error_us / 1000,
            "steps": self.steps,
            "refused": self.refused,
        }

    def add(self, sent_us: int, broker_us: int, received_us: int) -> None:
        """One sample more: the broker's time, asked for and received at these times of the monotonic clock."""
        latest_us = broker_us + RESOLUTION_US
        sample = _Sample(broker_us - received_us, latest_us - sent_us, received_us)
        local_us = self._clock.wall_ms() * 1000 - self.monotonic_us()
        if abs((sample.low_us + sample.high_us) // 2 - local_us) > OFFSET_MAX_MS * 1000:
            self.refused = (
                f"the broker's clock and this machine's are more than {OFFSET_MAX_MS // 3_600_000} h apart: "
                "set both by NTP; until then decisions do not follow the broker's time"
            )
            return
        self.refused = ""
        low_us, high_us, agreed = sample.low_us, sample.high_us, [sample]
        for kept in reversed(self._samples):
            drift_us = (received_us - kept.at_us) * DRIFT_PPM // 1_000_000
            narrower = max(low_us, kept.low_us - drift_us), min(high_us, kept.high_us + drift_us)
            if narrower[0] > narrower[1]:
                self.steps += len(agreed) == 1
                break
            (low_us, high_us), agreed = narrower, [kept, *agreed]
        self._samples = deque(agreed, maxlen=SAMPLES_KEPT)
        self._lead_us, self._error_us = (low_us + high_us) // 2, (high_us - low_us + 1) // 2
