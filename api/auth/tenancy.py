"""Tenancy: the backend as the caller of each request may use it.

Every route reaches models and workers through this, so none can forget what a key allows.
"""

from __future__ import annotations

import msgspec

from api.openai.types.backend import Backend
from api.server.caller import CALLER, Caller, effective_tenant
from api.server.errors import ApiError
from core.generation import GenerateRequest, OutputConsumer
from core.models import ModelCard, UnknownModel, unknown_model
from core.prompt import salt_of_tenant
from core.readiness import Readiness


class Tenancy:
    """A backend around a backend: a key's models, priorities and tenant, and with `isolate` a cache for each tenant."""

    def __init__(self, backend: Backend, *, isolate: bool) -> None:
        self._backend = backend
        self._isolate = isolate

    def models(self) -> list[ModelCard]:
        """Those that are there for the caller."""
        caller = CALLER.get()
        return [card for card in self._backend.models() if caller is None or caller.may_use(card.name)]

    def model_of(self, name: str) -> str:
        """The backend's."""
        return self._backend.model_of(name)

    def card(self, model: str) -> ModelCard:
        """The model's; UnknownModel for one that the key does not allow, as if there were none. A key allows a model by
        its own name, and with that all its names."""
        caller = CALLER.get()
        if caller is not None and not caller.may_use(self._backend.model_of(model)):
            names = (name for card in self.models() for name in (card.name, *card.further_names))
            raise UnknownModel(f"{unknown_model(model, names)} (this API key may use no others)")
        return self._backend.card(model)

    async def run(self, model: str, request: GenerateRequest, consumer: OutputConsumer) -> None:
        """The backend's, of the request in the name of the key's tenant; UnknownModel, or ApiError for a priority that
        the key does not allow, at once."""
        await self._backend.run(model, request_of_caller(model, request, isolate=self._isolate), consumer)

    def failed(self, request: str, model: str, tenant: str, error: Exception) -> None:
        """The backend's, of a request in the name of the key's tenant."""
        self._backend.failed(request, model, effective_tenant(tenant or None) or "", error)

    def delayed(self, request: str, written_ms: int, stalled_ms: int, unsent_bytes: int) -> None:
        """The backend's."""
        self._backend.delayed(request, written_ms, stalled_ms, unsent_bytes)

    def ready(self) -> Readiness:
        """The backend's."""
        return self._backend.ready()


def request_of_caller(model: str, request: GenerateRequest, *, isolate: bool) -> GenerateRequest:
    """The request in the name of the caller's tenant, with `isolate` in a cache of that tenant. UnknownModel, or
    ApiError for a priority that the key does not allow."""
    _check_allowed(CALLER.get(), model, request.priority)
    tenant = effective_tenant(request.tenant)
    salt = salt_of_tenant(tenant or "", request.cache_salt or "") if isolate else request.cache_salt
    if tenant == request.tenant and salt == request.cache_salt:
        return request
    return msgspec.structs.replace(request, tenant=tenant, cache_salt=salt)


def _check_allowed(caller: Caller | None, model: str, priority: int) -> None:
    if caller is None:
        return
    if not caller.may_use(model):
        raise UnknownModel(f"the model {model!r} does not exist, or this API key may not use it")
    low, high = caller.priority
    if not low <= priority <= high:
        allowed = f"priorities from {low} to {high}" if low < high else "no priority but 0"
        fault = f"this API key allows {allowed}, and {priority} was asked for, in `x-contrail-priority` or `priority`"
        raise ApiError(403, fault, param="priority", code="priority_not_allowed")
