"""`contrail doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

import asyncio
from collections import Counter

import click
import msgspec

from api.cli.doctor.examination import Examination, examine
from api.cli.doctor.finding import OK, PROBLEM, WARNING, Finding
from api.cli.output import EXIT_NO, EXIT_NOT_ASKED, text_table
from api.config.deployment_options import deployment_options
from api.config.deployment_ref import DeploymentRef

MARKS = {OK: "ok", WARNING: "warning", PROBLEM: "PROBLEM"}


@click.command()
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def doctor(connection: DeploymentRef, as_json: bool) -> None:
    """Check a running deployment, and say in one sentence each what is well and what to do about what is not.

    Nothing is changed. Exit status 1 if there is a problem, 2 if nobody could be asked.

    \b
    contrail doctor --data data
    contrail doctor --json
    """
    examined = asyncio.run(examine(connection))
    click.echo(as_json_text(examined) if as_json else as_text(examined.findings))
    if not examined.asked:
        raise SystemExit(EXIT_NOT_ASKED)
    if not examined.well:
        raise SystemExit(EXIT_NO)


def as_text(findings: list[Finding]) -> str:
    """One line for each check, and what they come to."""
    rows = [(MARKS[finding.status], finding.name, finding.text) for finding in findings]
    counts = Counter(finding.status for finding in findings)
    total = f"{counts[OK]} well, {counts[WARNING]} warnings, {counts[PROBLEM]} problems"
    return "\n".join([*text_table(("", "check", "what was found"), rows, "<<<"), "", total])


def as_json_text(examined: Examination) -> str:
    """Stable snake_case keys."""
    value = {"checks": examined.findings, "ok": examined.well}
    return msgspec.json.format(msgspec.json.encode(value)).decode()
