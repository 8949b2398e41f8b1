"""The command line."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from api.lazy_group import Command, lazy_group
from core.errors import ContrailError

COULD_NOT_ASK = 2
"""Exit status when a command could not do its work; 1 is for an answer that is no."""
INTERRUPTED = 130
"""The same of one that was ended by Ctrl-C, as shells have it."""


COMMANDS = {
    "up": Command("api.up:up", "Start a whole deployment here, and keep it running."),
    "frontend": Command("api.cli_frontend:frontend", "Start one front end: the API and its router."),
    "worker": Command("api.cli_worker:worker", "Start one worker: an engine and its cache."),
    "prefill-worker": Command("api.cli_prefill_worker:prefill_worker", "Start one that computes prompts for others."),
    "restart": Command("api.cli_restart:restart", "Restart parts one after the other while requests go on."),
    "events": Command("api.cli_events:events", "Print the log as JSON lines."),
    "replicas": Command("api.cli_replicas:replicas", "Show how far each replica is, and whether they agree."),
    "snapshots": Command("api.cli_snapshots:snapshots", "List, take and verify snapshots of the folds."),
    "settings": Command("api.cli_settings:settings", "Show and change what decisions go by, while it runs."),
    "keys": Command("api.cli_keys:keys", "Make, list and revoke API keys."),
    "doctor": Command("api.cli_doctor:doctor", "Check a deployment, one sentence for each thing."),
    "explain": Command("api.cli_explain:explain_command", "Say why a request went where it went."),
    "replay": Command("api.cli_replay:replay", "Verify the past, look at it, ask what if."),
    "simulate": Command("api.simulating.command:simulate", "Route a trace on simulated engines, in virtual time."),
    "debug": Command("api.cli_debug:debug", "Open the page of a running deployment."),
    "export": Command("api.cli_export:export", "Write the log, or a range of it, to a file."),
}


class Commands(lazy_group(COMMANDS)):  # type: ignore[misc]
    """All of them; Ctrl-C ends any without another word."""

    def invoke(self, ctx: click.Context) -> Any:
        """What the command returns; exit status 130 if it was interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # the terminal has written ^C in front of what comes next
            ctx.exit(INTERRUPTED)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="contrail")
def contrail() -> None:
    """Serve language models behind an OpenAI-compatible API, with every routing decision in a log.

    \b
    contrail up                              two workers with a tiny model, on port 8000
    contrail up --model Qwen/Qwen3-0.6B      a real one
    contrail explain REQUEST_ID              why that worker

    Exit status: 0, 1 (the answer is no), 2 (it could not be asked) or 130 (Ctrl-C; `up` ends in order, with 0).
    """


def main() -> None:
    """Runs the command; what a caller can mend is one sentence and status 2."""
    try:
        contrail.main(prog_name="contrail")
    except ContrailError as error:
        logging.getLogger(__name__).debug("the command failed", exc_info=True)
        click.echo(f"contrail: {error}", err=True)
        sys.exit(COULD_NOT_ASK)


if __name__ == "__main__":
    main()
