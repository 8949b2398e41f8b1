"""ServedNames: all names of models, and the model that a request means by a name.

1. A model's own name counts before a further name of another model. A plain name counts before a pattern (a
   prefix followed by `*`), and a longer pattern before a shorter one.
2. Where two models claim one name it is that of the first one by name: all replicas that know the same workers agree.
3. Names of models with workers count before all names of models without one, which keep theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

NAMES_MAX = 64
"""Further names of one model."""
NAME_LENGTH_MAX = 256
NAMED_MAX = 20
"""Names that a refusal lists."""
ANY = "*"
"""Ends a pattern."""


class ServedNames(NamedTuple):
    """See the module's text."""

    plain: Mapping[str, str] = MappingProxyType({})
    """Name to model; its own name stands there, too."""
    patterns: tuple[tuple[str, str], ...] = ()
    """Beginning and model, the longest beginning first."""
    further: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Of the models that have any, the plain names beside their own, in the order in which they were given."""

    @staticmethod
    def of(claims: Mapping[str, tuple[str, ...]]) -> ServedNames:
        """By model, what it claims beside its own name."""
        plain, patterns = {model: model for model in claims}, dict[str, str]()
        for model in sorted(claims):
            for name in claims[model]:
                if name.endswith(ANY):
                    patterns.setdefault(name.removesuffix(ANY), model)
                else:
                    plain.setdefault(name, model)
        further = {
            model: names
            for model, claimed in claims.items()
            if (names := tuple(name for name in claimed if name != model and plain.get(name) == model))
        }
        return ServedNames(plain, tuple(sorted(patterns.items(), key=lambda each: (-len(each[0]), each[0]))), further)

    def model_of(self, name: str) -> str | None:
        """The model that has this name; None if none has."""
        found = self.plain.get(name)
        if found is None and self.patterns:
            found = next((model for beginning, model in self.patterns if name.startswith(beginning)), None)
        return found

    def all(self) -> Iterator[str]:
        """Every name by which a model can be asked for, patterns as they were given."""
        yield from sorted(self.plain)
        yield from sorted(f"{beginning}{ANY}" for beginning, _ in self.patterns)


def check_names(names: Collection[str]) -> None:
    """A model may have these names, of which the first is its own. ValueError says which one is wrong."""
    if not names:
        raise ValueError("give at least one name")
    if len(names) > NAMES_MAX + 1:
        raise ValueError(f"{len(names)} names are too many; {NAMES_MAX + 1} are the most")
    seen = set[str]()
    for name in names:
        if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
            raise ValueError(f"{name[:NAME_LENGTH_MAX]!r}: a name has 1 to {NAME_LENGTH_MAX} printable characters")
        if ANY in name.removesuffix(ANY):
            raise ValueError(f"{name!r}: `{ANY}` may stand at the end of a name only")
        if name in seen:
            raise ValueError(f"{name!r}: stands twice")
        seen.add(name)
    first = next(iter(names))
    if first.endswith(ANY):
        raise ValueError(f"{first!r}: the first name is the model's own, and ends in no `{ANY}`")


def listed(names: Iterable[str]) -> str:
    """The first NAMED_MAX of them, for a refusal; `none yet` if there are none."""
    found = list(islice(names, NAMED_MAX + 1))
    return ", ".join(found[:NAMED_MAX]) + (", …" if len(found) > NAMED_MAX else "") or "none yet"
