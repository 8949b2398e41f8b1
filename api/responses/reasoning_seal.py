"""Reasoning that a client keeps between turns: sealed, because nothing is stored here and only its tenant may read it.

Each text has a key of its own, derived from a random salt, so no number of texts wears the deployment's key out. Items
that come back sealed are opened in place before the conversation is read.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from api.responses.responses_types import Item, ItemPart, ResponsesRequest

SEALED_CHARS_MAX = 2 * 1024 * 1024
"""Longest sealed text: some 400 000 tokens of reasoning."""
KEY_BYTES = 32
SALT_BYTES = 24
NONCE_BYTES = 12
VERSION = b"\x01"
"""First byte of every sealed text; another one is another form."""


class ReasoningSeal:
    """Seals and opens under one key; every front end of a deployment has the same."""

    def __init__(self, key: bytes, older: Sequence[bytes] = ()) -> None:
        """`older` keys open, and do not seal."""
        self._key = key
        self._keys = (key, *older)

    def __repr__(self) -> str:
        return "<ReasoningSeal>"

    @staticmethod
    def of_this_process() -> ReasoningSeal:
        """A seal with a key of this process alone."""
        return ReasoningSeal(secrets.token_bytes(KEY_BYTES))

    def seal(self, text: str, tenant: str | None) -> str | None:
        """The text for this tenant alone, in letters, digits, - and _; None if that would be too long."""
        salt = secrets.token_bytes(SALT_BYTES)
        cipher, nonce = _cipher(self._key, salt)
        boxed = cipher.encrypt(nonce, text.encode("utf-8", "replace"), _bound_to(tenant))
        sealed = base64.urlsafe_b64encode(VERSION + salt + boxed).decode()
        return sealed if len(sealed) <= SEALED_CHARS_MAX else None

    def open(self, sealed: str, tenant: str | None) -> str | None:
        """The text; None unless this key sealed it for this tenant."""
        if len(sealed) > SEALED_CHARS_MAX:
            return None
        try:
            raw = base64.b64decode(sealed.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        if not raw.startswith(VERSION) or len(raw) < len(VERSION) + SALT_BYTES:
            return None
        salt, boxed = raw[len(VERSION) :][:SALT_BYTES], raw[len(VERSION) + SALT_BYTES :]
        for key in self._keys:
            cipher, nonce = _cipher(key, salt)
            with contextlib.suppress(InvalidTag):
                return cipher.decrypt(nonce, boxed, _bound_to(tenant)).decode()
        return None


def _cipher(key: bytes, salt: bytes) -> tuple[ChaCha20Poly1305, bytes]:
    derived = hashlib.blake2b(salt, key=key, digest_size=KEY_BYTES + NONCE_BYTES).digest()
    return ChaCha20Poly1305(derived[:KEY_BYTES]), derived[KEY_BYTES:]


def _bound_to(tenant: str | None) -> bytes:
    """Associated data; a request without a tenant is not one of a tenant without a name."""
    return VERSION + (b"" if tenant is None else b":" + tenant.encode())


SEALED_ITEMS_MAX = 1024
"""Sealed items that are opened per request, the last ones; templates keep the reasoning of the last turns alone."""

log = logging.getLogger(__name__)


def unseal_reasoning(
    body: ResponsesRequest, seal: ReasoningSeal, tenant: str | None, request_id: str
) -> ResponsesRequest:
    """The request with the reasoning that this tenant's sealed items hold.

    An item that does not open stays as it is, without reasoning or with its summary: a client may bring it from another
    provider. The log counts those items.
    """
    if isinstance(body.input, str):
        return body
    sealed = [at for at, item in enumerate(body.input) if _is_sealed(item)]
    if not sealed:
        return body
    items, shut = list(body.input), max(0, len(sealed) - SEALED_ITEMS_MAX)
    for at in sealed[-SEALED_ITEMS_MAX:]:
        text = seal.open(items[at].encrypted_content or "", tenant)
        if text is None:
            shut += 1
        else:
            items[at] = msgspec.structs.replace(items[at], content=[ItemPart(type="reasoning_text", text=text)])
    if shut:
        log.info("left out %d sealed items of reasoning that do not open here", shut, extra={"request_id": request_id})
    return msgspec.structs.replace(body, input=items)


def _is_sealed(item: Item) -> bool:
    return item.type == "reasoning" and bool(item.encrypted_content) and not item.content
