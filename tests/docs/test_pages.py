"""Pages: their size, their links, and the functions that ARCHITECTURE.md names."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from core.events.routing import PROGRAM_VERSION
from tests.docs.pages import ARCHITECTURE, BESIDE, DOCS, FRONT, PAGES, ROOT, anchors, blocks, links, name, prose

FRONT_WORDS_MAX = 700
ARCHITECTURE_WORDS_MAX = 2000
IMAGE_BYTES_MAX = 300_000
RIDDLES = re.compile(r"\b(whoever|whatever|nobody|somebody|whom)\b", re.IGNORECASE)
"""Pronouns that stand where a noun should; `words.md` has the reason."""
SENTENCE_WORDS_MAX = 28
"""25 are meant; figures and lists in parentheses count as words here."""


def test_the_front_page_is_short() -> None:
    assert len(FRONT.read_text().split()) <= FRONT_WORDS_MAX


def test_the_front_page_names_the_version() -> None:
    """The minor version; the program's own is that of the package."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == PROGRAM_VERSION
    assert f"- Version {declared.rpartition('.')[0]}. " in FRONT.read_text()


def test_the_architecture_is_short_and_drawn() -> None:
    """Three sequence diagrams: a chat, a cache event, a decision until it is verified."""
    assert len(ARCHITECTURE.read_text().split()) <= ARCHITECTURE_WORDS_MAX
    drawn = blocks("mermaid", [ARCHITECTURE])
    assert [block.text.splitlines()[0] for block in drawn] == ["sequenceDiagram"] * 3


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file, and each anchor a heading of it."""
    wrong = []
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(link)
    assert wrong == []


def test_pages_of_the_site_stay_inside_it() -> None:
    """A link from docs/ to a file beside it would be dead in the built site."""
    paths = [
        (name(page), link)
        for page in DOCS.rglob("*.md")
        for link in links(page)
        if not link.startswith(("http", "#")) and DOCS not in (page.parent / link).resolve().parents
    ]
    assert paths == []


def test_images_are_small() -> None:
    images = [path for path in (DOCS / "images").iterdir() if path.stat().st_size > IMAGE_BYTES_MAX]
    assert images == []


def test_every_decision_is_listed_by_its_number() -> None:
    files = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert [file[:4] for file in files] == [f"{number:04}" for number in range(1, len(files) + 1)]
    assert links(DOCS / "decisions" / "README.md") == files
    titles = [(DOCS / "decisions" / file).read_text().splitlines()[0] for file in files]
    assert [title.partition(".")[0] for title in titles] == [f"# {number}" for number in range(1, len(files) + 1)]


def test_old_names_lead_to_modules_that_exist() -> None:
    """Each row has an old module's name, and the modules with its contents, or that these are gone."""
    rows = [line.split("\t") for line in (DOCS / "decisions" / "0001-modules.tsv").read_text().splitlines()]
    places = {new: ROOT / new.replace(".", "/") for _, found in rows for new in found.split() if new != "gone"}
    assert [new for new, path in places.items() if not (path.with_suffix(".py").exists() or path.is_dir())] == []


WRITTEN_BY_OTHERS = {"docs/conformance.md"}
"""Pages that quote answers word by word."""


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in WRITTEN_BY_OTHERS], ids=name)
def test_sentences_name_their_subjects(page: Path) -> None:
    """No pronoun without a noun, and no sentence that a listener forgets before its end."""
    text = re.sub(r"`[^`]*`", "CODE", prose(page))
    assert RIDDLES.findall(text) == []
    lines = [line.lstrip("-0123456789. ") for line in text.splitlines() if not line.startswith(("|", "#", "!"))]
    sentences = [each for line in lines for each in re.split(r"(?<=[.:;!?])\s+", line)]
    assert [each for each in sentences if len(each.split()) > SENTENCE_WORDS_MAX] == []


def test_each_package_has_one_row_with_all_of_its_rooms() -> None:
    """Merges that unite lines gave some packages three rows, each without a room of the others."""
    rows = re.findall(r"^\| `(\w+)/` \|(.*)\|$", ARCHITECTURE.read_text(), re.MULTILINE)
    named = [(package, set(re.findall(r"`(\w+)/`", text))) for package, text in rows]
    packages = sorted({package for package, _ in named})
    there = {
        package: {each.name for each in (ROOT / package).iterdir() if any(each.glob("*.py"))} for package in packages
    }
    assert sorted(package for package, _ in named) == packages
    assert {package: sorted(there[package] - rooms) for package, rooms in named if there[package] - rooms} == {}


def named_functions() -> list[tuple[str, str]]:
    """Rows of ARCHITECTURE.md that end with a file and a function of it."""
    return re.findall(r"\| `([\w/]+\.py)` `([\w.]+)` \|$", ARCHITECTURE.read_text(), re.MULTILINE)


def test_the_walks_are_there() -> None:
    """So that a changed form of the tables does not leave the next test without cases."""
    assert len(named_functions()) >= 25


@pytest.mark.parametrize(("file", "function"), named_functions())
def test_walks_name_functions_that_exist(file: str, function: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text()).body
    for part in function.split("."):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        found = [node for node in body if isinstance(node, kinds) and node.name == part]
        assert found, f"{file} has no {function}"
        body = found[0].body


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_pages_name_exist(page: Path) -> None:
    """Paths in code spans that begin with a folder of the project."""
    folders = "core|streams|projections|actors|replay|api|tests|bench|examples|deploy"
    paths = re.findall(rf"`((?:{folders})/[\w./]+)`", prose(page))
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_that_pages_name_exist(page: Path) -> None:
    """`core.subjects.job_kind`: the module is there, and the name is defined in it."""
    wrong = []
    for dotted in re.findall(r"`((?:core|streams|projections|actors|replay|api)(?:\.\w+)+)`", prose(page)):
        *module, last = dotted.split(".")
        file, whole = ROOT.joinpath(*module).with_suffix(".py"), ROOT.joinpath(*module, last).with_suffix(".py")
        defined = rf"^(class |def |async def )?{last}\b"
        if not (whole.exists() or whole.with_suffix("").is_dir()) and not (
            file.exists() and re.search(defined, file.read_text(), re.MULTILINE)
        ):
            wrong.append(dotted)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_file_names_alone_are_those_of_modules(page: Path) -> None:
    """`tokenizer_pool.py` without its folder is a module of some room."""
    packages = ("core", "streams", "projections", "actors", "replay", "api", "tests")
    alone = re.findall(r"`(\w+\.py)`", prose(page))
    assert [file for file in alone if not any(any((ROOT / each).rglob(file)) for each in packages)] == []
