"""What the API needs from whoever routes: models by name, and generations by tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from core.generation import GenerateRequest, Output
from core.models import ModelCard
from core.readiness import Readiness


class Backend(Protocol):
    """One process's router as the API sees it; all methods are called on the event loop."""

    def models(self) -> list[ModelCard]:
        """Every model that is known, sorted by name."""

    def card(self, model: str) -> ModelCard:
        """The model of this name; UnknownModel if there is none."""

    def generate(
        self, model: str, request: GenerateRequest, ended: Callable[[], str | None] = lambda: None
    ) -> AsyncIterator[Output]:
        """New tokens as they come, the last Output with `finish`.

        The first step raises UnknownModel, NoWorkers, Overloaded, CallerError or GenerationFailed; a later one
        GenerationFailed. `aclose()` of the iterator cancels at the worker; `ended` says then how the answer ended
        for the client, None if it went away.
        """

    def ready(self) -> Readiness:
        """Whether requests can be served, and what is waited for (part to reason)."""
