"""What every frame on a TCP connection between parts is; `actors.wire` has the rules."""

from __future__ import annotations

import msgspec


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One msgpack map; each kind states its `type` as its tag, so that a class can be renamed."""
