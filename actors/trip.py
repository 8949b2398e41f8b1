"""Trip: one request over all its attempts."""

from __future__ import annotations

from actors.told import Told
from actors.tries import Tries
from core.errors import CallerError
from core.events import RequestMigrated
from core.ids import WorkerId
from core.models import GenerationFailed, NoWorkers


class Trip:
    """What counts from one attempt to the next."""

    __slots__ = ("arrived_ms", "attempt", "before", "declined", "hasty", "held_ms", "model", "told", "tries", "why")

    def __init__(self, model: str, told: Told, arrived_ms: int) -> None:
        self.model = model
        self.told = told
        self.tries: Tries | None = None
        """There once an attempt broke off."""
        self.arrived_ms = arrived_ms
        self.attempt = 0
        """The present one, or the next."""
        self.declined = 0
        """Attempts in a row, from the first, that a worker declined."""
        self.held_ms: int | None = None
        """Since when it is held, by the clock of `now_ms`; None if it never was."""
        self.before = WorkerId("")
        """Who broke off last, and why."""
        self.why = ""
        self.hasty = False
        """It left in good order and made nothing."""

    def __repr__(self) -> str:
        return f"<Trip attempt {self.attempt}, {self.told!r}>"

    def migrated(self, request: str) -> RequestMigrated:
        """The present attempt goes on with an answer that was begun."""
        return RequestMigrated(
            request=request,
            attempt=self.attempt,
            worker=self.before,
            told_tokens=len(self.told.tokens),
            reason=self.why,
        )

    def spoil(self, error: NoWorkers | CallerError) -> None:
        """Returns if the client has no token yet and may hear this itself; GenerationFailed if it has: then it is
        neither its fault nor to be begun anew."""
        if self.told.tokens:
            text = "the worker broke off, and" if isinstance(error, NoWorkers) else "the answer cannot be continued:"
            raise GenerationFailed(f"{text} {error}") from error
