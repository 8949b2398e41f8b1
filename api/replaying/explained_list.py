"""Requests as a table, one attempt a line, and how to look at one of them."""

from __future__ import annotations

from api.amounts import number_text
from api.text_table import text_table
from replay.explain.request_list import RequestListEntry

_HEADS = ("time", "request", "worker", "replica", "prompt", "cached", "predicted", "ttft", "took", "outcome")
NONE = "-"


def listed_text(listed: list[RequestListEntry], where: str) -> str:
    """The table; `where` is what to add to a command for it to ask the same log."""
    if not listed:
        return "no request in the log is like that"
    lines = text_table(_HEADS, [_cells(each) for each in listed], "<<<<>>>>><")
    return "\n".join([*lines, "", f"contrail explain {listed[0].request}{where}    says why, and what came of it"])


def _cells(each: RequestListEntry) -> tuple[str, ...]:
    attempt = f" #{each.attempt}" if each.attempt else ""
    return (
        each.time,
        f"{each.request}{attempt}",
        each.worker_name or NONE,
        each.replica_name,
        _number(each.prompt_tokens),
        _number(each.real_cached_tokens),
        _number(each.predicted_cached_tokens),
        _ms(each.ttft_ms),
        _ms(each.duration_ms),
        each.outcome.replace("_", " "),
    )


def _number(value: int | None) -> str:
    return NONE if value is None else number_text(value)


def _ms(value: int | None) -> str:
    return NONE if value is None or value < 0 else f"{number_text(value)} ms"
