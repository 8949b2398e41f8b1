"""Shared options of commands: moments (`-15m` is an argument, not an option), ranges, KEY=VALUE, process names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
import orjson

from api.config.schema import OperationsSection
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL
from core.ids import NAME

if TYPE_CHECKING:  # front ends and workers start without the packages of replay
    from replay.recording.moment import Moment

_AGO = re.compile(r"-\d\S*")
"""No option begins with a digit; a wrong unit is named when the moment is parsed."""
_MARK = "\0"
"""A character that no word of a command line has."""


class MomentType(click.ParamType[str]):
    """The text of a moment, parsed later against the log (`replay.recording.moment.parse_moment`)."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it was typed."""
        del param, ctx
        return str(value).removeprefix(_MARK)


MOMENT = MomentType()
MOMENT_HELP = "MOMENT: 2026-11-20T14:03:05Z, 14:03, -15m, routing:1234, or a request id."


class MomentCommand(click.Command):
    """A command with moments as arguments: `-1h` is not read as `-1` and `-h`.

    All its options that take a moment have the type MOMENT.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's parsing, with times such as `-1h` kept apart from options."""
        return super().parse_args(ctx, [f"{_MARK}{word}" if _AGO.fullmatch(word) else word for word in args])


MODEL_OPTION = click.option(
    "--model", metavar="NAME", help="Where the planner sizes several models, the one that is meant."
)

ROLE_OPTION = click.option(
    "--role", type=click.Choice((DECODE, PREFILL)), help="Where both are sized, the role of the workers that are meant."
)


class RecordingRange(NamedTuple):
    """A range of the history; None is open."""

    start: Moment | None = None
    end: Moment | None = None


PREFIX = "routing."
"""Keys may be written as in the deployment file."""


def pairs_of(words: tuple[str, ...], command: str = "contrail settings set") -> dict[str, Any]:
    """Settings from `KEY VALUE KEY VALUE`; a value is a number if it parses as one. Errors name the command.

    CallerError if a value is missing, a key is given twice, or a word is an unknown option.
    """
    if option := next((word for word in words if word.startswith("--")), None):
        raise CallerError(f"{option}: no such option; `{command} --help` lists them")
    if len(words) % 2:
        raise CallerError(f"{words[-1]}: give a value for each setting: {command} KEY VALUE")
    keys = [key.removeprefix(PREFIX) for key in words[::2]]
    if len(set(keys)) != len(keys):
        raise CallerError("a setting is given twice")
    return dict(zip(keys, map(_value, words[1::2]), strict=True))


def _value(word: str) -> object:
    try:
        return orjson.loads(word)
    except orjson.JSONDecodeError:
        return word


def pairs(texts: Iterable[str]) -> dict[str, Any]:
    """Settings from texts `KEY=VALUE`, or several with commas between; the last value of a key counts.

    CallerError names a text of another form.
    """
    found: dict[str, Any] = {}
    for text in texts:
        words: list[str] = []
        for part in text.split(","):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not (key and equals and value):
                raise CallerError(f"{text!r} is not KEY=VALUE, or several of them with commas between")
            words += [key, value]
        found |= pairs_of(tuple(words))
    return found


def sweeps(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values by setting from texts `KEY=VALUE,VALUE,…`; CallerError names a wrong text or a repeated key."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not (key.strip() and equals and words):
            raise CallerError(f"--sweep: {text!r} is not KEY=VALUE,VALUE,…")
        several = [pairs([f"{key.strip()}={word}"]) for word in words]
        (name,) = several[0]
        if name in found:
            raise CallerError(f"--sweep: {name} is given twice")
        found[name] = [each[name] for each in several]
    return found


SLO_SETTINGS: Mapping[str, str] = {"ttft": "ttft_ms", "itl": "itl_ms", "attainment": "attainment"}
"""Keys of `--slo`, with those of a planner's settings."""


def slo_settings(given: Sequence[str]) -> Mapping[str, Any]:
    """The bounds of service that are given, by their names in a planner's settings. CallerError names a wrong key."""
    found = pairs([word for words in given for word in words.split(",")])
    for key in found:
        if key not in SLO_SETTINGS:
            raise CallerError(f"--slo: {key} is no bound of service; there are {', '.join(SLO_SETTINGS)}")
    return {SLO_SETTINGS[key]: value for key, value in found.items()}


def _checked_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not NAME.fullmatch(name):
        raise CallerError(f"--name {name!r}: use 1 to 63 of a-z, 0-9 and '-'")
    return name


def name_option(default: str) -> Callable[..., Any]:
    """The option that gives a part its stable name: it stands in the log, in metrics, and in file names."""
    return click.option(
        "--name", default=default, show_default=True, callback=_checked_name, help="For people; stable."
    )


OPS_OPTION = click.option(
    "--ops",
    default="",
    metavar="HOST:PORT",
    help="Metrics, state and probes.  [default: a free port of loopback, or of the deployment's operations.host]",
)
OPS_TOKEN_OPTION = click.option(
    "--ops-token",
    metavar="FILE",
    help="Metrics and state ask for the token in this file.  [default: the deployment's, else none]",
)


def operations_section(configured: OperationsSection, token_file: str | None) -> OperationsSection:
    """The deployment's section of operations listeners, with the file of --ops-token if that is given."""
    return msgspec.structs.replace(configured, token_file=token_file or configured.token_file)
