"""Dependencies with internals that this program uses: their installed versions must lie in the declared ranges."""

from __future__ import annotations

import operator
import re
import sys
from importlib import metadata

from core.errors import CallerError

_COMPARISONS = {">=": operator.ge, "<": operator.lt}


def check_dependency(name: str) -> None:
    """The installed version lies in the range that this package declares; else CallerError says how to get one.

    A checkout that is run without being installed declares nothing, and then nothing is checked.
    """
    installed = metadata.version(name)
    try:
        declared = metadata.requires("contrail") or []
    except metadata.PackageNotFoundError:
        return
    needed = next((each for each in declared if re.match(rf"{re.escape(name)}[<>=]", each)), "")
    for sign, bound in re.findall(r"(>=|<)([\d.]+)", needed):
        if not _COMPARISONS[sign](_release(installed), _release(bound)):
            raise CallerError(
                f"{name} {installed} is installed, and Contrail needs {needed}, because it uses that library's "
                f"internals: run {sys.executable} -m pip install '{needed}'"
            )


def _release(version: str) -> list[int]:
    """The numbers of a version up to any suffix: a release candidate counts as its release."""
    found = re.match(r"\d+(\.\d+)*", version)
    assert found is not None
    return [int(number) for number in found[0].split(".")]
