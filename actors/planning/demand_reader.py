"""DemandReader: counts the demand of each model in the routing stream as it grows, from a recorded place on.

A count that begins anew rests on the requests of some time before: those that have not ended must be known. Where it
begins stands in the next `DemandRolled`, so that a replay counts the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from core.codec import decode_message
from core.errors import Corrupt
from core.events.scale import DemandRolled, model_and_role
from core.ids import StreamSeq
from core.subjects import ROUTING
from projections.scaling.fleet_demand import FleetDemand
from projections.scaling.prefill_speed_model import PrefillSpeedModel
from projections.scaling.request_demand import OPEN_MS
from projections.scaling.scale_settings import ScaleSettings
from projections.scaling.speed_model import SpeedModel
from streams.log import EventLog, Record, StreamState, Tail

ABSENCE_MAX_MS = 3_600_000
"""Demand of a longer time without a planner is not counted: the count begins at the stream's end."""


class DemandReader:
    """Started once, stopped once. Memory is that of FleetDemand."""

    def __init__(
        self,
        log: EventLog,
        settings: Mapping[str, ScaleSettings],
        speeds: Sequence[SpeedModel | PrefillSpeedModel],
        now_ms: Callable[[], int],
    ) -> None:
        """Settings by fleet; under NO_MODEL the requests of all models are one demand. The speeds are taught by the
        same requests."""
        self._speeds = speeds
        self._log = log
        self._settings = dict(settings)
        self._now_ms = now_ms
        self._demand = FleetDemand(settings)
        self._tail: Tail | None = None
        self._epoch = 0
        self._seq = StreamSeq(0)
        """Of the last message counted."""
        self._since: StreamSeq | None = None
        """The first message of a count that no period has told of; None behind it."""
        self._skip_to: StreamSeq | None = None
        """Messages up to here belong to earlier periods; None behind them."""
        self._rolled = 0, StreamSeq(0), 0
        """Epoch, sequence and time of the end of the last period that was recorded."""
        self._began_ms = 0
        """The start of the present period."""

    def __repr__(self) -> str:
        return f"<DemandReader at {self._seq}, {self._demand!r}>"

    def use(self, settings: Mapping[str, ScaleSettings]) -> None:
        """By fleet, the bounds of service of the periods from here on; to be called right after `roll`."""
        self._settings.update(settings)
        for fleet, each in settings.items():
            self._demand.use(fleet, each)

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        """Epoch and sequence of the last message counted."""
        return {ROUTING: (self._epoch, self._seq)}

    async def start(self, cursor: Mapping[str, tuple[int, int]], rolled_ms: int) -> None:
        """The stream is followed. The count goes on behind `cursor`, at which the last period ended at `rolled_ms`; if
        there is none, or the stream does not have it any more, or it is too old, at the stream's end."""
        state = await self._log.state(ROUTING)
        epoch, seq = cursor.get(ROUTING, (0, 0))
        self._rolled, self._began_ms = (epoch, StreamSeq(seq), rolled_ms), rolled_ms
        is_there = epoch == state.epoch and state.first_seq - 1 <= seq <= state.last_seq
        if is_there and self._now_ms() - rolled_ms <= ABSENCE_MAX_MS:
            since = min(await self._log.seek(ROUTING, rolled_ms - OPEN_MS), seq + 1)
        else:
            since, self._began_ms = state.last_seq + 1, self._now_ms()
        self._begin(state.epoch, StreamSeq(since))
        self._tail = await self._log.tail(ROUTING, StreamSeq(since), self._on_record, on_reset=self._on_reset)

    async def caught_up(self) -> bool:
        """True if all that the stream holds now is counted."""
        state = await self._log.state(ROUTING)
        return state.epoch == self._epoch and self._seq >= state.last_seq

    async def stop(self) -> None:
        """Nothing is counted any more."""
        if self._tail is not None:
            await self._tail.stop()

    def roll(self, at_ms: int) -> dict[str, DemandRolled]:
        """By model, the period from the last one's end until now, which is that of both roles; empty while messages of
        earlier periods are read again. O(open requests)."""
        if self._skip_to is not None:
            return {}
        period_s = max(1, round((at_ms - self._began_ms) / 1000))
        models = dict.fromkeys(model_and_role(fleet)[0] for fleet in self._settings)
        rolled = {model: self._demand.roll(model, at_ms, period_s, self.cursor) for model in models}
        if self._since is not None:
            rolled = {model: replace(each, since=int(self._since)) for model, each in rolled.items()}
        self._rolled, self._began_ms, self._since = (self._epoch, self._seq, at_ms), at_ms, None
        return rolled

    def _on_record(self, record: Record) -> None:
        try:
            events = decode_message(record.payload).events
        except Corrupt:
            events = ()  # the doctor and `replay verify` name it
        for event in events:
            self._demand.apply(event)
            if self._skip_to is None:
                for speed in self._speeds:
                    speed.apply(event)
        self._seq = record.seq
        self._note_skipped()

    def _begin(self, epoch: int, since: StreamSeq) -> None:
        """The count begins anew with that message. `replay.verify.scale_checks` does the same."""
        self._demand = FleetDemand(self._settings)
        self._epoch, self._seq, self._since = epoch, StreamSeq(since - 1), since
        rolled_epoch, rolled_seq, _ = self._rolled
        self._skip_to = rolled_seq if rolled_epoch == epoch and since <= rolled_seq + 1 else None
        self._note_skipped()

    def _note_skipped(self) -> None:
        if self._skip_to is not None and self._seq >= self._skip_to:
            self._demand.skip(self._rolled[2])
            self._skip_to = None

    def _on_reset(self, now: StreamState) -> None:
        """The stream's history was replaced."""
        self._begin(now.epoch, now.first_seq)
