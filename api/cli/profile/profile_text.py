"""The measured speed of an engine as a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from api.cli.quantities import count_text, ms_text, seconds_text
from api.cli.renderer import Table, Text
from projections.scaling.measured_profile import DecodePoint, MeasuredProfile

US_PER_MS = 1000


def profile_text(found: MeasuredProfile, file: Path | None) -> Text:
    """The tables of the profile, and the next step where a file was written."""
    yield f"{found.model} on {found.engine}, measured in {seconds_text(found.seconds)}"
    room = f"{found.room_tokens:,} tokens in its cache" if found.room_tokens else "an unknown cache"
    slots = f"{count_text(found.slots, 'request')} at once" if found.slots else "unknown slots"
    yield f"{room}, blocks of {found.block_size} tokens, {slots}"
    yield ""
    yield Table(
        ("prompt tokens", "to first token", "tokens/s", "prompts"),
        [
            (f"{point.tokens:,}", _ms(point.us), f"{point.tokens * 1_000_000 // point.us:,}", str(point.repeats))
            for point in found.prefill
        ],
        ">>>>",
    )
    yield ""
    tokens = sorted({point.tokens for point in found.decode})
    yield Table(
        ("requests", *(f"a step at {each:,} tokens each" if each == tokens[0] else f"{each:,}" for each in tokens)),
        list(_rows(found.decode, tokens)),
        ">" * (1 + len(tokens)),
    )
    if file is not None:
        yield ""
        yield f"wrote {file}"
        yield f"next: `planner: {{profile: {file}}}` in the deployment's file"


def _rows(points: tuple[DecodePoint, ...], tokens: list[int]) -> Iterator[tuple[str, ...]]:
    known = {(point.requests, point.tokens): point.us for point in points}
    for requests in sorted({point.requests for point in points}):
        yield (
            str(requests),
            *(_ms(known[requests, each]) if (requests, each) in known else "-" for each in tokens),
        )


def _ms(us: int) -> str:
    return ms_text(us / US_PER_MS, 2)
