"""`contrail init`: the deployment files and examples that Contrail ships, written into a folder."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.output import print_result
from api.cli.quantities import count_text
from api.cli.renderer import Table, Text
from api.config.data_folder import check_free, draft
from core.errors import CallerError

PACKAGED = Path(__file__).parents[2] / "contrail_shipped"
"""Place of the files in an installed wheel."""
SOURCE = Path(__file__).parents[2]
"""Place of the files in a checkout, of which an editable installation makes no copy."""
FOLDERS = ("deploy", "examples")
SUFFIXES = (".yaml", ".service", ".py")
FIRST = "deploy/agg-router.yaml"
"""The deployment file to begin with."""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--list", "only_list", is_flag=True, help="Show the files; write nothing.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def init(folder: Path, only_list: bool, force: bool, as_json: bool) -> None:
    """Write the shipped deployment files and examples into FOLDER, by default this one.

    \b
    contrail init serving             writes serving/deploy and serving/examples
    contrail init --list              every file, with its first line
    contrail init serving --force     also over files that are there
    """
    files = shipped_files()
    if only_list:
        rows = [(name, _purpose(file)) for name, file in files.items()]
        print_result(
            _listed(rows), {"files": [{"file": name, "purpose": text} for name, text in rows]}, as_json=as_json
        )
        return
    written = [folder / name for name in files]
    write_files(files, folder, force=force)
    value = {"folder": str(folder), "written": [str(path) for path in written]}
    print_result(_written(folder, written), value, as_json=as_json)


def shipped_files() -> dict[str, Path]:
    """The shipped files by their names below the target folder, sorted."""
    root = PACKAGED if PACKAGED.is_dir() else SOURCE
    found = (file for folder in FOLDERS for file in (root / folder).glob("*") if file.suffix in SUFFIXES)
    return {file.relative_to(root).as_posix(): file for file in sorted(found)}


def write_files(files: dict[str, Path], folder: Path, *, force: bool) -> None:
    """Every file is in the folder, which is made if it is missing. CallerError if a file is there and `force` is not
    given: then none was written."""
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallerError(f"cannot make the folder {folder / name}: {error.strerror}") from error
    for name in files:
        check_free(folder / name, force=force)
    for name, file in files.items():
        with draft(folder / name, force=force) as written:
            written.write_bytes(file.read_bytes())


def _purpose(file: Path) -> str:
    """The first line of a file's own comment."""
    return file.read_text().partition("\n")[0].strip('#" ')


def _listed(rows: list[tuple[str, str]]) -> Text:
    yield Table(("file", "purpose"), rows, "<<")


def _written(folder: Path, written: list[Path]) -> Text:
    yield f"wrote {count_text(len(written), 'file')}:"
    yield from (f"  {path}" for path in written)
    yield f"next: contrail up -f {folder / FIRST}"
    yield f"then: python {folder / 'examples' / 'conversation.py'}"
