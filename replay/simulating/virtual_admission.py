"""VirtualAdmission: one replica's queue in a simulation: a request goes on when a worker has a place for it.

As the real one (`actors.router.admission`), with its order, its bounds and its words in the log. Nobody hangs up here,
and nobody has a deadline; nothing needs more of the loop's time than it has, so whoever is let in goes on at that
moment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

from actors.router.admission import SHARE_FRESH_MS
from actors.router.capacity import Capacity
from actors.router.request_queue import RETRY_AFTER_MAX_S, RequestQueue
from core.events import Event
from core.events.routing import TURNED_AWAY, RequestQueued, RequestTurnedAway
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.settings import RoutingSettings
from projections.policy.fair_queue import FairQueue
from replay.simulating.agenda import Agenda
from replay.simulating.journey import MODEL, Journey
from replay.simulating.virtual_log import VirtualLog

US_PER_MS = 1000


class VirtualAdmission:
    """See the module's text."""

    def __init__(
        self,
        settings: RoutingSettings,
        agenda: Agenda,
        log: VirtualLog,
        *,
        room: Callable[[], Capacity | None],
        say: Callable[[Event], None],
        let_in: Callable[[Journey], None],
        turned_away: Callable[[Journey, str, int], None],
    ) -> None:
        """`room` is of now; `let_in` hears of those that waited and have a place, `turned_away` of those that get none,
        of the reason (`TURNED_AWAY`), and after how many seconds their clients are told to try again."""
        self._settings = settings
        self._agenda = agenda
        self._log = log
        self._room = room
        self._say = say
        self._let_in = let_in
        self._turned_away = turned_away
        self._line = RequestQueue(MODEL)
        """Counts; those that wait stand in the queue here."""
        self._queue = FairQueue[Journey]()
        self._timers: dict[RequestId, int] = {}
        """Of those that wait: the number in the agenda of the moment when that was too long."""

    def __repr__(self) -> str:
        return f"<VirtualAdmission {self._line.active} active, {len(self._queue)} waiting>"

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    @property
    def now_ms(self) -> int:
        """A clock that never goes back."""
        return self._agenda.now_us // US_PER_MS

    def enter(self, journey: Journey) -> bool:
        """Whether the request has a place; if not it waits, or was turned away."""
        line = self._line
        sure = line.active < line.share and self.now_ms < line.share_until_ms and not len(self._queue)
        if sure or self._advance():
            self._place(journey)
            return True
        if self._make_way(journey):
            self._wait(journey)
        return False

    def ended(self, journey: Journey, *, whole: bool) -> None:
        """If the request had a place, the next one has it; `whole` if it was answered."""
        if journey.placed_us < 0:
            return
        self._line.end(journey.arrival.tenant)
        if whole:
            self._line.learn(self.now_ms - journey.placed_us // US_PER_MS, journey.told)
        if len(self._queue):
            self._advance()

    def look(self) -> None:
        """Whoever waits and need not has been let in."""
        self._line.share_until_ms = 0
        if len(self._queue):
            self._advance()

    # --- places ------------------------------------------------------------------------------------------------

    def _advance(self) -> int:
        """Whoever may go now goes on at this time; returns how many places are left."""
        line, room = self._line, self._room()
        if room is None:  # the decision says why
            free, line.share = len(self._queue) + 1, 0
        else:
            free, line.share = room.free(line.active, line.coming), room.share
            line.share_until_ms = self.now_ms + SHARE_FRESH_MS
        while free and len(self._queue):
            journey = self._queue.pop()
            self._agenda.cancel(self._timers.pop(journey.arrival.id))
            self._place(journey)
            line.coming += 1
            self._agenda.put(self._agenda.now_us, partial(self._go, journey))
            free -= 1
        return free

    def _place(self, journey: Journey) -> None:
        self._line.begin(journey.arrival.tenant)
        journey.placed_us = self._agenda.now_us

    def _go(self, journey: Journey) -> None:
        self._line.coming -= 1
        self._let_in(journey)

    def _wait(self, journey: Journey) -> None:
        """The log knows that it waits, and it has its place in the order."""
        it = journey.arrival
        self._say(
            RequestQueued(
                request=it.id,
                model=MODEL,
                priority=it.priority,
                tenant=it.tenant,
                prompt_tokens=it.prompt_tokens,
                why=self._why(),
                depth=len(self._queue),
                now_ms=self._log.now_ms,
            )
        )
        answer = GenerateRequest(id=it.id, tokens=b"", sampling=Sampling(max_tokens=it.output_tokens))
        self._queue.push(journey, it.priority, it.tenant, it.prompt_tokens + self._line.work(answer))
        until_us = self._agenda.now_us + self._settings.queue_wait_max_ms * US_PER_MS
        self._timers[it.id] = self._agenda.put(until_us, partial(self._turn_away, journey, "queue_wait"))

    def _why(self) -> str:
        if len(self._queue):
            return "behind"
        room = self._room()
        return "overloaded" if room is not None and room.overloaded and not room.places else "full"

    # --- refusals ----------------------------------------------------------------------------------------------

    def _make_way(self, journey: Journey) -> bool:
        """Whether one more may wait; if that is one too many, another left, or this one was turned away."""
        it, most = journey.arrival, self._line.waiting_max(self._settings)
        if len(self._queue) < most:
            return True
        last = self._queue.crowded_out(it.priority, it.tenant) if most else None
        if last is None:
            self._turn_away(journey, self._crowded(journey, journey))
            return False
        self._turn_away(last, self._crowded(last, journey))
        return True

    def _crowded(self, out: Journey, comes: Journey) -> str:
        """Why `out` has to leave or may not wait because `comes` does not fit in."""
        too_many = self._queue.has_too_many(out.arrival.tenant, comes.arrival.tenant)
        return "tenant_share" if too_many else "queue_full"

    def _turn_away(self, journey: Journey, reason: str) -> None:
        """It gets no place, and waits no more if it did."""
        retry_s = max(1, min(RETRY_AFTER_MAX_S, ceil(self._line.wait_ms(len(self._queue)) / 1000)))
        it, waited = journey.arrival, self._queue.remove(journey)
        if waited:
            self._agenda.cancel(self._timers.pop(it.id))
        self._say(
            RequestTurnedAway(
                request=it.id,
                model=MODEL,
                reason=reason,
                status=TURNED_AWAY[reason],
                waited_ms=self.now_ms - journey.arrived_us // US_PER_MS if waited else -1,
                tenant=it.tenant,
            )
        )
        self._turned_away(journey, reason, retry_s)
