"""The variables that Contrail reads: all of them are known, listed, and missed where they are written wrongly."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from api.cli.up import up
from api.config.loading import VARIABLES, unknown_variables

ROOT = Path(__file__).parents[3]


def test_every_variable_that_the_code_reads_is_known() -> None:
    """None of them is read beside the list."""
    code = "".join(path.read_text() for path in sorted((ROOT / "api").rglob("*.py")))
    read = set(re.findall(r'"(CONTRAIL_[A-Z_]*[A-Z])"', code))
    assert read == set(VARIABLES)


def test_the_manual_lists_them_all() -> None:
    """The table of docs/configuration.md has each variable once, and no other."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    section = text.partition("\n## Environment\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(CONTRAIL_[A-Z_]+)` \|", section, re.MULTILINE)
    assert listed == list(VARIABLES)


def test_a_variable_that_is_written_wrongly() -> None:
    """The nearest one is named; what is not like ours is nobody's concern."""
    assert unknown_variables(["HOME", "CONTRAIL_PORT"]) == []
    assert unknown_variables(["CONTRAIL_PROT", "CONTRAIL_COLOUR_OF_SKY"]) == [
        "CONTRAIL_COLOUR_OF_SKY is no variable of Contrail's and changes nothing; docs/configuration.md lists them.",
        "CONTRAIL_PROT is no variable of Contrail's and changes nothing; did you mean CONTRAIL_PORT?",
    ]


def test_up_says_so() -> None:
    """On standard error, so that what is printed stays what it is."""
    said = CliRunner().invoke(up, ["--print-config"], env={"CONTRAIL_PROT": "1"}, catch_exceptions=False)
    assert (
        "Note: CONTRAIL_PROT is no variable of Contrail's and changes nothing; did you mean CONTRAIL_PORT"
        in said.stderr
    )
    assert said.stdout.startswith("version: 1")
