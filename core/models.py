"""A model as clients see it, and why a request for it cannot be served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from core.errors import CallerError, PeerError, Unavailable
from core.served_names import listed


class ServedAdapter(NamedTuple):
    """An adapter (LoRA) of a model, which requests name as their model."""

    name: str
    id: str
    """`core.events.kv.Adapter.id`."""
    workers: int
    """Workers that serve it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Model card: the facts that a front end needs to serve a model; any of its workers gives it."""

    name: str
    engine: str
    """`vllm 0.32.0`, or `simulated`: then no language model computes the tokens."""
    context_max: int
    """Longest prompt with answer, in tokens."""
    created_s: int
    """When this front end first saw it, seconds since 1970."""
    workers: int
    """Workers that can take requests now."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Tokenizer files by name: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`,
    `generation_config.json`."""
    further_names: tuple[str, ...] = ()
    """Beside its own, without patterns (`core.served_names`)."""
    embedding_size: int = 0
    """Numbers in an embedding; 0 if unknown."""
    adapters: tuple[ServedAdapter, ...] = ()
    """By name."""
    adapter: ServedAdapter | None = None
    """The adapter that was asked for; None if it was the model itself."""

    @property
    def shown_name(self) -> str:
        """The name that answers have: that of the adapter, or the model's own."""
        return self.name if self.adapter is None else self.adapter.name


class UnknownModel(CallerError):
    """No worker ever served a model of this name here."""


def unknown_model(name: str, names: Iterable[str]) -> UnknownModel:
    """For a request that asks for a model by this name, where only those can be asked for."""
    return UnknownModel(f"the model {name!r} does not exist; there are: {listed(names)}")


class NoWorkers(Unavailable):
    """The model is known, but no worker can take the request now."""

    def __init__(self, text: str, retry_after_s: int = 1) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Overloaded(NoWorkers):
    """Workers are there, all at their limit."""


class RateLimited(NoWorkers):
    """Workers are all at their limit, and most of what waits for them is this tenant's."""


class DeadlineExceeded(PeerError):
    """The client's deadline passed before the answer was whole."""


class GenerationFailed(PeerError):
    """The worker broke off in the middle; tokens may have been sent already."""
