"""Items of reasoning that come back sealed, opened in place before the conversation is read."""

from __future__ import annotations

import logging

import msgspec

from api.openai.responses.body import Item, ItemPart, ResponsesRequest
from api.openai.responses.reasoning_seal import ReasoningSeal

SEALED_ITEMS_MAX = 1024
"""Sealed items that are opened per request, the last ones; templates keep the reasoning of the last turns alone."""

log = logging.getLogger(__name__)


def opened(asked: ResponsesRequest, seal: ReasoningSeal, tenant: str | None, request_id: str) -> ResponsesRequest:
    """The request with the reasoning that this tenant's sealed items hold.

    An item that does not open stays as it is, without reasoning or with its summary: a client may bring it from another
    provider. The log counts those items.
    """
    if isinstance(asked.input, str):
        return asked
    sealed = [at for at, item in enumerate(asked.input) if _is_sealed(item)]
    if not sealed:
        return asked
    items, shut = list(asked.input), max(0, len(sealed) - SEALED_ITEMS_MAX)
    for at in sealed[-SEALED_ITEMS_MAX:]:
        text = seal.open(items[at].encrypted_content or "", tenant)
        if text is None:
            shut += 1
        else:
            items[at] = msgspec.structs.replace(items[at], content=[ItemPart(type="reasoning_text", text=text)])
    if shut:
        log.info("left out %d sealed items of reasoning that do not open here", shut, extra={"request_id": request_id})
    return msgspec.structs.replace(asked, input=items)


def _is_sealed(item: Item) -> bool:
    return item.type == "reasoning" and bool(item.encrypted_content) and not item.content
