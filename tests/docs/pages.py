"""The pages of the documentation, their code blocks, their headings and their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FRONT = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DOCS = ROOT / "docs"
BESIDE = [ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md"]
"""Pages whose links and commands are checked, and not their sentences."""
PAGES = [FRONT, ARCHITECTURE, *sorted(DOCS.rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    """A fenced code block."""

    place: str
    """The page and the line that it begins in."""
    language: str
    text: str


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(language: str, pages: list[Path] = PAGES) -> list[Block]:
    """The blocks in this language."""
    found = []
    for page in pages:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(f"{name(page)}:{line}", language, match[2]))
    return found


def place(block: Block) -> str:
    return block.place


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def spans(page: Path) -> list[str]:
    """Code inside sentences and tables."""
    return _SPAN.findall(prose(page))


def links(page: Path) -> list[str]:
    """Targets of links and images, without those in code."""
    return _LINK.findall(_SPAN.sub("", prose(page)))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    return {slug(match[1]) for match in re.finditer(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def slug(heading: str) -> str:
    """`The size of the log` becomes `the-size-of-the-log`."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def commands(text: str) -> Iterator[str]:
    """The commands of a shell block: one a line, continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()
