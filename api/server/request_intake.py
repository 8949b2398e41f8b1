"""RequestIntake: when a request came to this process, and when its body was whole."""

from __future__ import annotations

import msgspec

from api.server.tcp_probe import TcpProbe
from core.clock import SystemClock
from core.generation import IntakeTimes

_now_ns = SystemClock.monotonic_ns
_NS_PER_US = 1000
_NS_PER_MS = 1_000_000


class RequestIntake(msgspec.Struct):
    """The moments of one request before the router has it, by the monotonic clock. Some 2 us in all, most of it for the
    kernel's word on when the head came."""

    _arrived_ns: int = 0
    _begun_ns: int = 0
    _whole_ns: int = 0

    def __repr__(self) -> str:
        return f"<RequestIntake {self.times()}>"

    def on_head(self, probe: TcpProbe) -> None:
        """The head was read now; the kernel may have had it for a while."""
        self._arrived_ns = _now_ns() - probe.ms_since_data() * _NS_PER_MS

    def on_whole(self) -> None:
        """The last byte of the body was read now."""
        self._whole_ns = _now_ns()

    def begin(self) -> None:
        """The request's route begins now."""
        self._begun_ns = _now_ns()

    def times(self) -> IntakeTimes | None:
        """The stages until now; None if its bytes came another way than over a connection."""
        arrived_ns, begun_ns, now_ns = self._arrived_ns, self._begun_ns, _now_ns()
        if not arrived_ns or not begun_ns:
            return None
        whole_ns = max(begun_ns, self._whole_ns)
        return IntakeTimes(
            (begun_ns - arrived_ns) // _NS_PER_US,
            (whole_ns - begun_ns) // _NS_PER_US,
            (now_ns - whole_ns) // _NS_PER_US,
        )
