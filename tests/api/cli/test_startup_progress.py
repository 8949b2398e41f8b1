"""What is shown while parts start."""

from __future__ import annotations

import io

from api.cli.startup_progress import REPEAT_EVERY_S, PlainProgress, TableProgress
from api.deployment.readiness import ProgressRow


def row(name: str, state: str, waited_s: float = 1.0) -> ProgressRow:
    return ProgressRow(name, "tiny on vllm", state, waited_s, state == "ready")


def test_without_a_terminal_each_change_is_one_line() -> None:
    """What stays the same is not said again, except that what is waited for is told from time to time."""
    out = io.StringIO()
    progress = PlainProgress(out)

    progress.show([row("a", "starting"), row("b", "ready")])
    progress.show([row("a", "starting", 2.0), row("b", "ready")])
    progress.show([row("a", "starting", REPEAT_EVERY_S), row("b", "ready")])
    progress.show([row("a", "ready", 20.0), row("b", "ready")])

    said = [(line.split()[2], line.split()[-1]) for line in out.getvalue().splitlines()]
    assert said == [("a", "starting"), ("b", "ready"), ("a", "starting"), ("a", "ready")]


def test_on_a_terminal_the_table_is_written_over_itself() -> None:
    """A redraw goes up as many lines as stand there; a line that is said ends up above the table."""
    out = io.StringIO()
    progress = TableProgress(out)

    progress.show([row("a", "starting"), row("b", "starting")])
    progress.write_line("something happened")
    progress.show([row("a", "ready"), row("b", "starting")])
    progress.done()
    progress.write_line("the end")

    first, second, third = out.getvalue().split("\x1b[2F\x1b[J")
    assert [line.split()[-1] for line in first.splitlines()] == ["starting", "starting"]
    assert second.splitlines() == ["something happened", *first.splitlines()]
    assert [line.split()[-1] for line in third.splitlines()] == ["ready", "starting", "end"]
