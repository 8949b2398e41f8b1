"""The command line: its commands, imported when they are run, and the classes of command groups."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import click

from api.cli.output import EXIT_INTERRUPTED, EXIT_NOT_ASKED
from api.process.printable import printable_lines
from core.errors import ContrailError, did_you_mean

# click calls a range of numbers an "integer range", in help and in errors
click.IntRange.name, click.FloatRange.name = "integer", "number"


class LazyCommand(NamedTuple):
    """A command that is imported when it runs, and its line in the help."""

    target: str
    """`module:attribute`."""
    summary: str


OTHER_NAMES = {
    "serve": "up",
    "start": "up",
    "run": "up",
    "status": "doctor",
    "logs": "events",
    "verify": "replay verify",
}
"""Commands of other programs, and ours for the same."""


class CommandGroup(click.Group):
    """A group of commands; of an unknown one it says which is meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; UsageError with a suggestion for an unknown command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(self.unknown_command(ctx, args[0]))
        return super().resolve_command(ctx, args)

    def unknown_command(self, ctx: click.Context, name: str) -> str:
        """The sentence about a command that is not there."""
        names = self.list_commands(ctx)
        near = did_you_mean(name, names) or f"; there are {', '.join(names)}"
        return f"No such command {name!r}{near}"


def lazy_group(commands: Mapping[str, LazyCommand]) -> type[click.Group]:
    """A class of groups with these commands, in this order."""

    class LazyGroup(CommandGroup):
        def list_commands(self, ctx: click.Context) -> list[str]:
            """All names, the most used first."""
            del ctx
            return list(commands)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            """The command, imported now; None if there is none of this name."""
            del ctx
            if cmd_name not in commands:
                return None
            module, _, attribute = commands[cmd_name].target.partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            """The list in `--help`, without importing anything."""
            del ctx
            with formatter.section("Commands"):
                formatter.write_dl([(name, command.summary) for name, command in commands.items()])

    return LazyGroup


class DefaultGroup(CommandGroup):
    """`contrail settings --json` is `contrail settings show --json`; a subclass names the default."""

    default: ClassVar[str] = ""
    takes_argument: ClassVar[bool] = False
    """The default command has an argument. Then `--help` is its help, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The name of the command stands first from here on."""
        own = set() if self.takes_argument else set(ctx.help_option_names)
        if not args or args[0] not in {*self.commands, *own}:
            args = _named_first(args, set(self.commands), self.default)
            is_word = args[0] == self.default and len(args) > 1 and not args[1].startswith("-")
            if is_word and not self.takes_argument:
                ctx.fail(self.unknown_command(ctx, args[1]))  # a default command takes options alone
        return super().parse_args(ctx, args)


def _named_first(args: list[str], names: set[str], default: str) -> list[str]:
    """A name counts unless it is the value of the option before it."""
    for place, word in enumerate(args):
        before = args[place - 1] if place else ""
        valued = before.startswith("-") and before != "--json" and "=" not in before
        if word in names and not valued:
            return [word, *args[:place], *args[place + 1 :]]
    return [default, *args]


COMMANDS = {
    "up": LazyCommand("api.cli.up:up", "Start a whole deployment here, and keep it running."),
    "init": LazyCommand("api.cli.init:init", "Write the shipped deployment files and examples into a folder."),
    "frontend": LazyCommand("api.cli.frontend_command:frontend", "Start one front end: the API and its router."),
    "worker": LazyCommand("api.cli.worker_commands:worker", "Start one worker: an engine and its cache."),
    "attach": LazyCommand("api.cli.worker_commands:attach", "Start one worker whose engine is a running server."),
    "prefill-worker": LazyCommand(
        "api.cli.worker_commands:prefill_worker", "Start one that computes prompts for others."
    ),
    "planner": LazyCommand("api.cli.planner_command:planner", "Start one planner: it sizes the fleet."),
    "scale": LazyCommand("api.cli.inspect.scale:scale", "Show what a planner decides, and change its limits."),
    "profile": LazyCommand("api.cli.profile.profile:profile", "Measure an engine's speed, for a planner."),
    "restart": LazyCommand("api.cli.restart:restart", "Restart parts one after the other while requests go on."),
    "events": LazyCommand("api.cli.inspect.events:events", "Print the log as JSON lines."),
    "replicas": LazyCommand(
        "api.cli.inspect.replicas:replicas", "Show how far each replica is, and whether they agree."
    ),
    "snapshots": LazyCommand("api.cli.inspect.snapshots:snapshots", "List, take and verify snapshots of the folds."),
    "settings": LazyCommand(
        "api.cli.inspect.settings:settings", "Show and change what decisions go by, while it runs."
    ),
    "keys": LazyCommand("api.cli.keys:keys", "Make, list and revoke API keys."),
    "kv": LazyCommand("api.cli.kv.tenant_blocks:kv", "List and erase the blocks of a tenant on disks and in stores."),
    "nats": LazyCommand("api.cli.nats_commands:nats", "Set up a NATS of your own, with an account for each role."),
    "deployment-key": LazyCommand(
        "api.cli.deployment_key:deployment_key", "Change the deployment's own secret; old chains still verify."
    ),
    "doctor": LazyCommand("api.cli.doctor.doctor:doctor", "Check a deployment, one sentence for each thing."),
    "explain": LazyCommand("api.cli.replay.explain:explain_group", "Say why a request went where it went."),
    "cache": LazyCommand("api.cli.replay.cache:cache", "Report the cache hits that were lost, by cause."),
    "sessions": LazyCommand("api.cli.replay.sessions:sessions", "List sessions: the slowest, or what each one lost."),
    "replay": LazyCommand("api.cli.replay.replay:replay", "Verify the past, look at it, ask what if."),
    "simulate": LazyCommand(
        "api.cli.simulate.simulate:simulate", "Route a trace on simulated engines, in virtual time."
    ),
    "debug": LazyCommand("api.cli.open_page:debug", "Open the page of a running deployment."),
    "export": LazyCommand("api.cli.replay.export:export", "Write the log, or a range of it, to a file."),
}


class RootGroup(lazy_group(COMMANDS)):  # type: ignore[misc]
    """All commands; Ctrl-C ends any of them without a message."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; an option before the command gets a sentence on its place."""
        try:
            return cast(list[str], super().parse_args(ctx, args))
        except click.NoSuchOption as error:
            raise click.UsageError(f"{error.format_message()} Options stand behind the command's name.", ctx) from error

    def unknown_command(self, ctx: click.Context, name: str) -> str:
        """Of a command that another program has, ours for the same."""
        ours = OTHER_NAMES.get(name)
        if ours is None:
            return cast(str, super().unknown_command(ctx, name))
        return f"No such command {name!r}; did you mean `contrail {ours}`?"

    def invoke(self, ctx: click.Context) -> Any:
        """The command's result; exit status 130 if it was interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # the terminal has written ^C in front of what comes next
            ctx.exit(EXIT_INTERRUPTED)


def _install_completion(ctx: click.Context, _option: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        from api.cli.completion import install_completion  # noqa: PLC0415 - every other command does without it

        click.echo(install_completion(ctx.command, os.environ))
        ctx.exit()


@click.command(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="contrail")
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Let your shell (bash, zsh or fish) complete commands and options, and exit.",
)
def contrail() -> None:
    """Serve language models behind an OpenAI-compatible API, with every routing decision in a log.

    \b
    contrail up                              two workers with a tiny model, on port 8000
    contrail up --model Qwen/Qwen3-0.6B      a real one
    contrail explain REQUEST_ID              why that worker

    Exit status: 0, 1 (the answer is no), 2 (it could not be asked), 3 (nothing could be judged) or 130 (Ctrl-C; `up`
    ends in order, with 0).
    """


def main() -> None:
    """Runs the command; an error that the caller can mend is printed as one sentence, with status 2."""
    try:
        contrail.main(prog_name="contrail")
    except ContrailError as error:
        logging.getLogger(__name__).debug("the command failed", exc_info=True)
        click.echo(f"contrail: {printable_lines(str(error))}", err=True)
        sys.exit(EXIT_NOT_ASKED)


if __name__ == "__main__":
    main()
