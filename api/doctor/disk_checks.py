"""Check of the disk below a private broker. Pure."""

from __future__ import annotations

from api.amounts import bytes_text
from api.doctor.finding import OK, PROBLEM, WARNING, Finding
from streams.jetstream.broker_inspection import BrokerStream

SPARE_SHARE = 0.1
"""Free space beyond what is promised to the streams, as a share of that, below which we warn."""


def check_disk(folder: str, free_bytes: int, streams: list[BrokerStream]) -> Finding:
    """What the streams may still take is free."""
    reserved = sum(max(it.max_bytes, 0) for it in streams)
    used = sum(it.bytes for it in streams)
    wanted = max(reserved - used, 0)
    facts = {"free_bytes": free_bytes, "reserved_bytes": reserved, "used_bytes": used}
    free, needs = bytes_text(free_bytes), bytes_text(wanted)
    if free_bytes < wanted:
        text = (
            f"{folder} has {free} free, but the streams may still take {needs}: make room, or lower log.max_bytes; "
            "on a full disk requests go on and events wait."
        )
        return Finding("disk", PROBLEM, text, facts)
    if free_bytes < wanted * (1 + SPARE_SHARE):
        text = f"{folder} has {free} free, hardly more than the {needs} that the streams may still take: make room."
        return Finding("disk", WARNING, text, facts)
    return Finding("disk", OK, f"{folder} has {free} free; the streams may still take {needs}.", facts)
