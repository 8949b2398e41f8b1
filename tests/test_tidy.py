"""The rules of the house that a program can check, read from the code itself."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINE = ("core", "streams", "projections", "actors", "replay", "api")
"""Each may import what stands left of it."""
BANNED = frozenset(
    [
        "ahead",
        "asking",
        "believed",
        "desk",
        "dispute",
        "doubts",
        "errand",
        "exhibit",
        "gathered",
        "lacks",
        "lanes",
        "lives",
        "manner",
        "passage",
        "past",
        "reel",
        "refold",
        "said",
        "seat",
        "settlement",
        "shelf",
        "stay",
        "stragglers",
        "supposed",
        "suspicion",
        "surroundings",
        "tally",
        "teams",
        "telling",
        "told",
        "trip",
        "unsent",
        "upkeep",
        "vigil",
        "voice",
    ]
)
"""Words that named modules and classes and stand for no term of the field."""

BANNED_NAMES = frozenset(
    [
        "ahead",
        "asking",
        "came",
        "doubts",
        "hear",
        "heard",
        "lacks",
        "links",
        "look",
        "looked",
        "looks",
        "nobody",
        "presence",
        "said",
        "says",
        "seat",
        "tell",
        "tells",
        "told",
        "wanted",
        "whoever",
    ]
)
"""The same for functions, parameters, attributes and variables."""
STANDARD_NAMES = {"presence_penalty", "look_ahead"}
STORED_NAMES = {
    "ahead",
    "ahead_events",
    "believed",
    "came",
    "clock_ahead_ms",
    "doubts",
    "lacks",
    "said",
    "seat",
    "told_tokens",
}
"""Fields of events, snapshots and JSON, which keep their names."""
RIDDLES = re.compile(r"\b(whoever|nobody|whatever)\b", re.IGNORECASE)
QUESTIONS = ("What ", "Who ", "Whoever ", "Whose ", "Nobody ", "Whether ", "Where ", "How ")
"""Starts of sentences that put a question where a noun should stand."""

SEAMS = {
    "nats": r"streams/(jetstream/\w+|embedded/embedded_nats)\.py",
    "etcd3": r"streams/(etcd/\w+|embedded/embedded_etcd)\.py",
    "grpc": r"streams/(etcd/\w+|embedded/embedded_etcd)\.py",
    "vllm": r"actors/engines/vllm/\w+\.py|api/parsers/vllm_parsers\.py",
    "torch": r"actors/engines/vllm/\w+\.py",
    "nixl": r"actors/engines/vllm/\w+\.py",
    "fastapi": r"api/.*",
    "uvicorn": r"api/server/\w+\.py",
}
"""Which files may know a library."""
LATE = ("vllm", "torch", "nixl")
"""Imported inside functions only: everything but the engine runs without them."""
CLOCKS = {"time", "random", "secrets", "uuid"}
CLOCKED = {"core/clock.py", "core/ids.py", "core/keys.py", "projections/runner/runner.py"}
"""The only files of core and projections that may ask the time or for randomness."""
MACHINE_PATHS = re.compile(r"/" + r"(work|farm|home|root|Users)/\w")

CODE = [path for package in LINE for path in sorted((ROOT / package).rglob("*.py"))]
OURS = [*CODE, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]
TEXTS = [
    *OURS,
    *(path for folder in ("deploy", "examples") for path in sorted((ROOT / folder).rglob("*")) if path.is_file()),
    *ROOT.glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "mkdocs.yml",
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    ROOT / "requirements-cpu.txt",
    ROOT / ".ci" / "run",
]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the file: to walk a tree anew for each rule took most of their time."""
    return tuple(ast.walk(parsed(path)))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """All modules that these nodes import, dotted."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their package in full"
            yield node.module or ""


def early(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from early(child)


@cache
def early_imports(path: Path) -> set[str]:
    found = (list(imports([node])) for node in early(parsed(path)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return {module.partition(".")[0] for modules in found for module in modules}


@pytest.mark.parametrize("package", LINE)
def test_imports_form_one_line(package: str) -> None:
    """core, streams, projections, actors, replay, api: each imports only what stands left of it."""
    forbidden = set(LINE[LINE.index(package) + 1 :]) | {"tests", "bench"}

    wrong = [
        f"{name(path)} imports {module}"
        for path in CODE
        if path.is_relative_to(ROOT / package)
        for module in imports(nodes(path))
        if module.partition(".")[0] in forbidden
    ]

    assert wrong == []


READERS = ROOT / "projections" / "runner"
"""The folder of projections that brings the log and the folds together."""


def test_folds_see_core_alone() -> None:
    """In projections only those who feed the folds know the log."""
    wrong = [
        f"{name(path)} imports {module}"
        for path in CODE
        if path.is_relative_to(ROOT / "projections") and READERS not in path.parents
        for module in imports(nodes(path))
        if module.partition(".")[0] in set(LINE) - {"core", "projections"}
    ]

    assert wrong == []


@pytest.mark.parametrize("library", SEAMS)
def test_libraries_stay_behind_their_seams(library: str) -> None:
    """Each of these libraries is known to a few files."""
    users = [name(path) for path in CODE if library in {m.partition(".")[0] for m in imports(nodes(path))}]

    assert [user for user in users if not re.fullmatch(SEAMS[library], user)] == []


BY_VLLM = [
    "actors/engines/vllm/disk_tier.py",
    "actors/engines/vllm/fetch_tier.py",
    "actors/engines/vllm/host_tier.py",
    "actors/engines/vllm/offloading_connector.py",
]


def test_engines_are_imported_late() -> None:
    """vLLM, torch and NIXL are imported inside functions, so that everything else runs without them; but in a module
    that vLLM imports by its name, and nothing else does."""
    assert [name(path) for path in CODE if early_imports(path) & set(LATE)] == BY_VLLM
    imported = re.compile(r"\b(host|disk|fetch)_tier import|import (host|disk|fetch)_tier$", re.MULTILINE)
    users = [name(path) for path in CODE if imported.search(path.read_text())]
    assert [user for user in users if user not in BY_VLLM] == []


def test_core_and_folds_ask_no_clock_and_no_dice() -> None:
    """What is decided depends on its inputs alone."""
    pure = [path for path in CODE if name(path).startswith(("core/", "projections/")) and name(path) not in CLOCKED]

    wrong = [
        f"{name(path)} imports {module}"
        for path in pure
        for module in imports(nodes(path))
        if module.partition(".")[0] in CLOCKS
    ] + [
        f"{name(path)}:{node.lineno} asks the time"
        for path in pure
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today", "urandom"}
    ]

    assert wrong == []


def test_no_file_name_occurs_twice_in_a_package() -> None:
    """A search for a module by its name finds one."""
    places: dict[tuple[str, str], list[str]] = {}
    for path in CODE:
        if not path.stem.startswith("__"):
            places.setdefault((name(path).partition("/")[0], path.stem), []).append(name(path))

    assert [found for found in places.values() if len(found) > 1] == []


def words_of(identifier: str) -> set[str]:
    """`LeaseTable` and `lease_table` have the words lease and table."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)}


def test_names_are_terms_of_the_field() -> None:
    """No module and no class is named by a word that a field engineer must translate; `BANNED` has those that were."""
    modules = [name(path) for path in CODE if words_of(path.stem) & BANNED]
    classes = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in CODE
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and words_of(node.name) & BANNED
    ]

    assert modules + classes == []


def named(path: Path) -> Iterator[tuple[int, str]]:
    """Functions, their parameters, attributes and variables that the file names, each with its line."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr if isinstance(node, ast.Attribute) else node.id


def test_functions_and_fields_have_standard_names() -> None:
    """So do they, but for those that are stored or sent."""
    kept = STANDARD_NAMES | STORED_NAMES
    found = [
        f"{name(path)}:{line} {word}"
        for path in CODE
        for line, word in named(path)
        if words_of(word) & BANNED_NAMES and word not in kept
    ]

    assert found == []


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, each with its line."""
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def test_sentences_name_their_subjects() -> None:
    """A docstring begins with a noun or a verb, and its subjects have names."""
    found = [
        f"{name(path)}:{line} {text.splitlines()[0]}"
        for path in CODE
        for line, text in sentences(path)
        if text.lstrip().startswith(QUESTIONS) or RIDDLES.search(text)
    ]

    assert found == []


def test_no_class_name_occurs_twice() -> None:
    """A class's name means one class everywhere; private names belong to their module."""
    places: dict[str, list[str]] = {}
    for path in CODE:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name(path))

    assert {found: where for found, where in places.items() if len(where) > 1} == {}


MODULES_MAX = 20
"""In one folder; some fifteen are meant."""


def test_folders_are_rooms() -> None:
    """None holds more modules than a newcomer can look through."""
    counts = Counter(path.parent for path in CODE)

    assert {name(folder): count for folder, count in counts.items() if count > MODULES_MAX} == {}


def room_of(module: str) -> str:
    """The folder of a module; a package's root counts by module."""
    folder = module.rpartition(".")[0]
    return folder if "." in folder else module


def rooms_with_imports() -> dict[str, set[str]]:
    """Each room, and which other rooms of its package it imports from."""
    modules = {name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in CODE}
    found: dict[str, set[str]] = {}
    for path in CODE:
        room = room_of(name(path).removesuffix(".py").replace("/", "."))
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if target in modules and target.partition(".")[0] == room.partition(".")[0]:
                        found.setdefault(room, set()).add(room_of(target))
    return {room: others - {room} for room, others in found.items()}


def reached(room: str, imports: dict[str, set[str]]) -> set[str]:
    """All rooms that this one imports from, through others, too."""
    found: set[str] = set()
    ahead = list(imports.get(room, ()))
    while ahead:
        found.add(other := ahead.pop())
        ahead += imports.get(other, set()) - found
    return found


def test_rooms_form_no_circles() -> None:
    """Inside a package a room imports only rooms that do not import it, also through others."""
    imports = rooms_with_imports()
    reach = {room: reached(room, imports) for room in imports}
    circles = {frozenset({room, *(other for other in reach[room] if room in reach.get(other, ()))}) for room in reach}

    assert [sorted(circle) for circle in circles if len(circle) > 1] == []


def test_no_failure_is_swallowed() -> None:
    """Nobody catches everything and does nothing about it."""
    broad = {None, "Exception", "BaseException"}
    swallowed = [
        f"{name(path)}:{node.lineno}"
        for path in OURS
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in broad))
        and all(isinstance(line, (ast.Pass, ast.Continue)) for line in node.body)
    ]

    assert swallowed == []


def test_no_machine_is_named() -> None:
    """Nothing in the project knows on whose disk it lies."""
    assert [name(path) for path in TEXTS if MACHINE_PATHS.search(path.read_text())] == []


def test_no_file_is_a_drawer() -> None:
    """A file is named for its noun."""
    assert [name(path) for path in OURS if path.stem in {"utils", "util", "helpers", "common", "misc"}] == []


def test_the_names_are_ours(tmp_path: Path) -> None:
    """From another directory, `core`, `api` and the rest are these folders and nobody else's.

    Inside pytest the root is first on the path, and a package of the same name would go unseen.
    """
    program = f"import {', '.join(LINE)}; print(*(list(p.__path__)[0] for p in ({', '.join(LINE)})), sep='\\n')"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    said = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.stderr == ""
    assert [Path(line).resolve() for line in said.stdout.splitlines()] == [ROOT / package for package in LINE]
