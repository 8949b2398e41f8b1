"""CaseResult: the figures of one case and the reasons why it failed; a table of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HEADER = "| case | rounds | texts as cold | found, blocks | refused | longest wait, ms | |"
RULE = "|---|--:|--:|---|---|--:|---|"
COMPLAINTS_MAX = 20
"""Complaints that are kept of a case; all are counted."""


@dataclass
class CaseResult:
    """One row. A case fails if it has a complaint, or if its texts are not as they must be."""

    name: str
    is_wrong_expected: bool = False
    """A check is switched off, so at least one text must be unlike cold."""
    rounds: int = 0
    """Texts."""
    kills: int = 0
    """Shown as rounds, if there were any."""
    right: int = 0
    """Texts that are those of cold."""
    found: Counter[str] = field(default_factory=Counter)
    """Blocks by source, by vLLM's own statistics or, in a deployment, by the answers."""
    refused: Counter[str] = field(default_factory=Counter)
    """Files and blocks by reason."""
    worst_ms: float = 0.0
    """The longest wait for a first token."""
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    complained: int = 0

    def add(self, *, is_right: bool, waited_ms: float = 0.0) -> None:
        """One more round with its text."""
        self.rounds += 1
        self.right += is_right
        self.worst_ms = max(self.worst_ms, waited_ms)

    def expect(self, condition: object, sentence: str) -> None:
        """The sentence is a complaint unless the condition holds."""
        if not condition:
            self.complained += 1
            if len(self.complaints) < COMPLAINTS_MAX:
                self.complaints.append(sentence)

    @property
    def failure(self) -> str:
        """Empty if all is as it must be."""
        if not self.rounds:
            return "nothing was asked"
        if self.is_wrong_expected and self.right == self.rounds:
            return "every text is right without the check"
        if not self.is_wrong_expected and self.right != self.rounds:
            return f"{self.rounds - self.right} texts are unlike cold"
        return f"{self.complained} complaints, first: {self.complaints[0]}" if self.complained else ""

    def row(self) -> str:
        """A line of the table."""
        notes = [f"**{self.failure}**"] if self.failure else []
        cells = [
            self.name,
            str(self.kills or self.rounds),
            f"{self.right} of {self.rounds}",
            counted(self.found),
            counted(self.refused),
            f"{self.worst_ms:.0f}" if self.worst_ms else "",
            "; ".join(notes + self.notes),
        ]
        return f"| {' | '.join(cells)} |"

    def facts(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "case": self.name,
            "rounds": self.rounds,
            "kills": self.kills,
            "right": self.right,
            "is_wrong_expected": self.is_wrong_expected,
            "found": dict(sorted(self.found.items())),
            "refused": dict(sorted(self.refused.items())),
            "worst_ms": round(self.worst_ms, 1),
            "notes": self.notes,
            "complaints": self.complaints,
            "complained": self.complained,
            "failure": self.failure,
        }


def counted(counts: Counter[str]) -> str:
    """`disk 200, host 3`; empty without any."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)


def table(results: Sequence[CaseResult]) -> str:
    """All rows, as Markdown."""
    return "\n".join([HEADER, RULE, *(result.row() for result in results)])
