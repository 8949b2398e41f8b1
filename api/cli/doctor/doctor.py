"""`contrail doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

import asyncio
from collections import Counter

import click

from api.cli.doctor.examination import examine
from api.cli.doctor.finding import Finding
from api.cli.output import EXIT_NO, EXIT_NOT_ASKED, print_result
from api.cli.quantities import count_text
from api.cli.renderer import OK, PROBLEM, WARNING, Mark, Table, Text
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
    value = {"checks": examined.findings, "ok": examined.well}
    print_result(findings_text(examined.findings), value, as_json=as_json)
    if not examined.asked:
        raise SystemExit(EXIT_NOT_ASKED)
    if not examined.well:
        raise SystemExit(EXIT_NO)


def findings_text(findings: list[Finding]) -> Text:
    """One line for each check, and what they come to."""
    rows = [(Mark(MARKS[finding.status], finding.status), finding.name, finding.text) for finding in findings]
    counts = Counter(finding.status for finding in findings)
    yield Table(("", "check", "what was found"), rows, "<<<")
    yield ""
    yield f"{counts[OK]} well, {count_text(counts[WARNING], 'warning')}, {count_text(counts[PROBLEM], 'problem')}"
