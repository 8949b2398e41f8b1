"""`contrail replay`: commands that make recorded decisions again. Each command is imported when it is run."""

from __future__ import annotations

import click

from api.cli.main import LazyCommand, lazy_group

COMMANDS = {
    "verify": LazyCommand("api.cli.replay.verify:verify", "Make every decision again, and report differences."),
    "at": LazyCommand("api.cli.replay.state_at:at", "Show the whole state at a moment, or the difference between two."),
    "what-if": LazyCommand(
        "api.cli.replay.what_if:what_if", "Decide again under other settings, and compare the outcomes."
    ),
    "bisect": LazyCommand(
        "api.cli.replay.bisect:bisect", "Find the first difference of two replicas, settings or versions."
    ),
    "open": LazyCommand(
        "api.cli.replay.open_recording:open_recording", "Open the page: a timeline that can be scrubbed."
    ),
}


@click.command(cls=lazy_group(COMMANDS))
def replay() -> None:
    """Make recorded decisions again from the log: every decision is a function of the log, so the results are exact.

    \b
    contrail replay verify --data data
    contrail replay at 14:03 --replica frontend-2 --log incident.contrail
    contrail replay what-if --set policy=round-robin --from -1h
    contrail replay open --log incident.contrail

    A MOMENT is 2026-11-20T14:03:05Z, 14:03 (UTC), -15m, routing:1234, or a request id.
    """
