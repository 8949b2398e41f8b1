"""What every frame on a TCP connection between parts is; `actors.wire` has the rules."""

from __future__ import annotations

import msgspec


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True, omit_defaults=True):
    """One msgpack map with its `type`."""
