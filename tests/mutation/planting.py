"""Planting: a mutant's file is imported with the mutant's text, in this process alone; the checkout stays as it is.

CONTRAIL_MUTANT=NAME python -m pytest -p tests.mutation.planting …
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
VARIABLE = "CONTRAIL_MUTANT"
"""Environment variable with the name of the mutant; nothing is planted without it."""


class MutantFinder(MetaPathFinder):
    """Finds one module of the program, with the mutant in it."""

    def __init__(self, mutant: Mutant) -> None:
        self.module = mutant.file.removesuffix(".py").replace("/", ".")
        self.mutant = mutant

    def __repr__(self) -> str:
        return f"<MutantFinder {self.mutant.name}>"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _MutantLoader(fullname, spec.origin, self.mutant)
        return spec


class _MutantLoader(SourceFileLoader):
    """No bytecode is read or written: that of the file is of the program without the mutant."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(mutated(self._mutant), self.get_filename(fullname), "exec")


def mutated(mutant: Mutant) -> str:
    """The source of the mutant's file with the bug. ValueError if the text does not occur once."""
    source = (ROOT / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"the old text of {mutant.name} occurs {source.count(mutant.old)} times in {mutant.file}")
    return source.replace(mutant.old, mutant.new)


def planted() -> MutantFinder | None:
    """The finder of the planted mutant, if there is one."""
    return next((finder for finder in sys.meta_path if isinstance(finder, MutantFinder)), None)


def plant(name: str) -> None:
    """The program that is imported from now on has this mutant."""
    finder = MutantFinder(next(mutant for mutant in MUTANTS if mutant.name == name))
    assert finder.module not in sys.modules, f"{finder.module} was imported before its mutant was planted"
    sys.meta_path.insert(0, finder)


if name := os.environ.get(VARIABLE):
    plant(name)
