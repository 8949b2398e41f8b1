"""Mutation: bugs planted one at a time, each of them named by `verify`, by a digest or by the suite.

python -m tests.mutation                       all of them, two at a time; some ten minutes
python -m tests.mutation --only gallop-narrow  one, or several
python -m tests.mutation --write               and docs/mutation.md has the table of the run

The log with every state is made and exported by the program without a mutant. Exit status 1 if a mutant survives, or
is named by the suite alone, without an argument, or if an argument is wrong.
"""

# ruff: noqa: T201 - it talks to the person who started it
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tests.mutation.every_state import EveryStateLog
from tests.mutation.mutants import MUTANTS, SUITES, Mutant
from tests.mutation.planting import ROOT, VARIABLE

LIMIT_S = 240.0
"""One examination, or one run of tests, at most: a mutant that takes longer is named by the limit."""
PAGE = ROOT / "docs" / "mutation.md"
START, END = "<!-- the table of the last run -->\n", "<!-- the end of the table -->\n"
FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(?:\S*/)?(\S+\.py.*?)(?: - .*)?$", re.MULTILINE)


class MutantResult(NamedTuple):
    """The findings about one mutant; empty where there is none."""

    name: str
    verify: str
    digest: str
    suite: str
    seconds: float

    @property
    def named_by(self) -> str:
        """`verify: TERM`, or else `digest: NAME`, or else `suite: TEST`; empty for a survivor."""
        for judge in ("verify", "digest", "suite"):
            if found := getattr(self, judge):
                return f"{judge}: {found}"
        return ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="this mutant; may be given again")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--json", type=Path, dest="report", help="write the findings there")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--list", action="store_true", help="list the mutants, and plant none")
    return parser.parse_args()


def examined(mutant: Mutant, log: Path, expected: Path) -> MutantResult:
    """The mutant was planted in processes of its own, and this is what they found."""
    began = time.monotonic()
    found = {"verify": f"beyond {LIMIT_S:.0f} s", "digest": ""}
    try:
        done = _python("-m", "tests.mutation.examination", mutant.name, str(log), str(expected))
        found = json.loads(done.stdout) if done.returncode == 0 else {"verify": "does not start", "digest": ""}
    except subprocess.TimeoutExpired:
        pass
    suite = "" if found["verify"] or found["digest"] else _suite(mutant)
    return MutantResult(mutant.name, found["verify"], found["digest"], suite, time.monotonic() - began)


def _suite(mutant: Mutant) -> str:
    """The first failing test of the mutant's area; empty if all pass."""
    words = ("-m", "pytest", "-p", "tests.mutation.planting", "-p", "no:cacheprovider", "-x", "-q")
    try:
        done = _python(*words, *SUITES[mutant.area], env={VARIABLE: mutant.name})
    except subprocess.TimeoutExpired:
        return f"beyond {LIMIT_S:.0f} s"
    if done.returncode == 0:
        return ""
    failed = FAILED.search(done.stdout)
    return failed.group(1) if failed else f"exit status {done.returncode}"


def _python(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": "0", **(env or {})}
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def all_results(mutants: list[Mutant], jobs: int) -> list[MutantResult]:
    """Of these mutants, in their order."""
    with tempfile.TemporaryDirectory(prefix="contrail-mutants-") as name:
        log, expected = Path(name) / "log.contrail", Path(name) / "expected.json"
        EveryStateLog().run().archived(log)
        made = _python("-m", "tests.mutation.examination", "-", str(log))
        if made.returncode:
            raise SystemExit(f"the program without a mutant fails:\n{made.stderr}")
        expected.write_text(made.stdout)
        found: dict[str, MutantResult] = {}
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(examined, mutant, log, expected) for mutant in mutants]
            for number, future in enumerate(as_completed(futures), 1):
                result = future.result()
                found[result.name] = result
                told = result.named_by or "survives"
                print(f"{number:3}/{len(mutants)}  {result.seconds:5.1f} s  {result.name:28} {told}", flush=True)
        return [found[mutant.name] for mutant in mutants]


def faults(mutants: list[Mutant], results: list[MutantResult]) -> list[str]:
    """Sentences about survivors and about mutants that the suite alone names, without an argument; and about arguments
    that a judge contradicts."""
    found = []
    for mutant, result in zip(mutants, results, strict=True):
        if result.suite and not mutant.unlogged:
            found.append(f"{mutant.name} is named by the suite alone: add the state to the log, or argue in the list")
        if mutant.unlogged and not result.suite:
            named_by = result.named_by or "no check"
            found.append(f"{mutant.name} is argued to be in no log, and is named by {named_by}")
        if not result.named_by and not mutant.equivalent:
            found.append(f"{mutant.name} survives: write the test that names it, or argue in the list")
        if result.named_by and mutant.equivalent:
            found.append(f"{mutant.name} is argued to be equivalent, and is named by {result.named_by}")
    return found


def table(mutants: list[Mutant], results: list[MutantResult]) -> str:
    """The table in Markdown, with its sums."""
    judges = Counter(result.named_by.partition(":")[0] or "survives" for result in results)
    sums = ", ".join(f"{judges[judge]} {judge}" for judge in ("verify", "digest", "suite", "survives") if judges[judge])
    rows = [
        f"{len(results)} mutants: {sums}.",
        "",
        "| mutant | area | verify | digest | suite |",
        "|---|---|---|---|---|",
    ]
    for mutant, result in zip(mutants, results, strict=True):
        suite = f"`{result.suite}`" if result.suite else ""
        if mutant.equivalent:
            suite = f"none: {mutant.equivalent}"
        rows.append(f"| `{mutant.name}` | {mutant.area} | {result.verify} | {result.digest} | {suite} |")
    return "\n".join([*rows, *_unlogged(mutants)]) + "\n"


def _unlogged(mutants: list[Mutant]) -> list[str]:
    """A second table: the mutants that no log shows, by the argument."""
    by_argument: dict[str, list[str]] = {}
    for mutant in mutants:
        if mutant.unlogged:
            by_argument.setdefault(mutant.unlogged, []).append(f"`{mutant.name}`")
    if not by_argument:
        return []
    rows = [f"| {', '.join(names)} | {argument} |" for argument, names in by_argument.items()]
    return ["", "| mutants that the suite alone names | why no log shows them |", "|---|---|", *rows]


def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    names = {mutant.name for mutant in MUTANTS}
    if unknown := [name for name in wanted.only if name not in names]:
        raise SystemExit(f"no mutant of that name: {', '.join(unknown)}")
    mutants = [mutant for mutant in MUTANTS if not wanted.only or mutant.name in wanted.only]
    if wanted.list:
        print(*(f"{mutant.name:28} {mutant.area:18} {mutant.file}" for mutant in mutants), sep="\n")
        return 0
    began = time.monotonic()
    results = all_results(mutants, wanted.jobs)
    found = faults(mutants, results)
    print(f"\n{table(mutants, results)}\n{time.monotonic() - began:.0f} s", *found, sep="\n")
    if wanted.report:
        rows = [{**result._asdict(), "named_by": result.named_by} for result in results]
        wanted.report.write_text(json.dumps({"mutants": rows, "faults": found}, indent=1) + "\n")
    if wanted.write:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(before + START + "\n" + table(mutants, results) + "\n" + END + rest.partition(END)[2])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(arguments()))
