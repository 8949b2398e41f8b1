"""`contrail replay`: the past again: verified, looked at, asked what if. Each command is imported when it is run."""

from __future__ import annotations

import click

from api.lazy_group import Command, lazy_group

COMMANDS = {
    "verify": Command("api.replaying.verify:verify", "Make every decision again, and say whether any differs."),
    "at": Command("api.replaying.at:at", "Show the whole state at a moment, or the difference between two."),
    "what-if": Command("api.replaying.what_if:what_if", "Decide again under other settings, and weigh the difference."),
    "bisect": Command("api.replaying.bisect:bisect", "Find the first event at which two of anything part."),
    "open": Command("api.replaying.open:open_page", "Open the page: a timeline that can be scrubbed."),
}


@click.command(cls=lazy_group(COMMANDS))
def replay() -> None:
    """Go back in the log: every decision is a function of it, so the past can be had again, exactly.

    \b
    contrail replay verify --data data
    contrail replay at 14:03 --replica frontend-2 --log incident.contrail
    contrail replay what-if --set policy=round-robin --from -1h
    contrail replay open --log incident.contrail

    A MOMENT is 2026-11-20T14:03:05Z, 14:03 (UTC), -15m, routing:1234, or a request id.
    """
