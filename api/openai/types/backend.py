"""The router as the API sees it: models by name, and generations by tokens."""

from __future__ import annotations

from typing import Protocol

from core.generation import GenerateRequest, OutputConsumer
from core.models import ModelCard
from core.readiness import Readiness


class Backend(Protocol):
    """One process's router as the API sees it; all methods are called on the event loop."""

    def models(self) -> list[ModelCard]:
        """Every model that is known, sorted by name."""

    def model_of(self, name: str) -> str:
        """The own name of the model that has this name; the name as it is if none has."""

    def card(self, model: str) -> ModelCard:
        """The model that has this name, under its own; UnknownModel if there is none."""

    async def run(self, model: str, request: GenerateRequest, consumer: OutputConsumer) -> None:
        """The consumer has all outputs, the last one with `finish`.

        Raises UnknownModel, NoWorkers, Overloaded, CallerError or GenerationFailed before the first output; after it
        GenerationFailed. A cancellation, or a consumer that wants no more, cancels at the worker; the log has the
        consumer's outcome then.
        """

    def failed(self, request: str, model: str, tenant: str, error: Exception) -> None:
        """The log has that the request failed inside this process, and of what kind `error` is, unless it has that
        from `run`. `model` may be one that is not known, or empty."""

    def delayed(self, request: str, written_ms: int, stalled_ms: int, unsent_bytes: int) -> None:
        """The log has that the client took its answer late (`core.events.routing.AnswerDelayed`)."""

    def ready(self) -> Readiness:
        """The readiness to serve requests, with the parts that are still awaited and their reasons."""
