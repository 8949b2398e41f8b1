"""`contrail deployment-key`: the generations of a deployment's own secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from api.cli.main import CommandGroup
from api.cli.output import print_result
from api.cli.renderer import Table, Text
from api.config.data_folder import PRIVATE_FILE, DataFolder, FolderLock, write_whole
from api.config.running_deployments import DEFAULT_DATA
from core.errors import CallerError
from core.keys import DeploymentKey
from core.subjects import check_namespace
from streams.outbox.journal_file import SUFFIX

HASH_SEED = "The seed of the block hashes stays: caches remain known. Copy the key file to every machine with parts."


def _key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has --data and --key-file, and gets the path of the key file as its argument `file`."""

    @click.option("--data", type=click.Path(path_type=Path), envvar="CONTRAIL_DATA", help="The data folder.")
    @click.option("--key-file", type=click.Path(path_type=Path), help="A key file that lies elsewhere.")
    @wraps(command)
    def with_file(*args: Any, data: Path | None, key_file: Path | None, **given: Any) -> Any:
        if data is not None and key_file is not None:
            raise CallerError("give either --data or --key-file, not both")
        return command(*args, folder=DataFolder(data or DEFAULT_DATA), key_file=key_file, **given)

    return with_file


@click.group("deployment-key", cls=CommandGroup)
def deployment_key() -> None:
    """Change the deployment's own secret without losing its log: chains of earlier generations still verify.

    \b
    contrail deployment-key rotate --data data     while the deployment is stopped
    contrail deployment-key list --data data
    contrail deployment-key forget 0 --data data   what generation 0 sealed is proved no more
    """


@deployment_key.command()
@_key_options
def rotate(folder: DataFolder, key_file: Path | None) -> None:
    """Begin a new generation of the key. Stop all parts first: parts of two generations do not connect.

    \b
    contrail deployment-key rotate --data data
    """
    with _alone(folder, key_file) as file:
        if next(folder.journal.glob("*" + SUFFIX), None) is not None:
            raise CallerError(
                f"{folder.journal} holds decisions that the log lacks: start and stop the deployment first"
            )
        key = DeploymentKey.load(file).rotated()
        _write(file, key)
    click.echo(f"generation {key.generation} of the key is in {file}. {HASH_SEED}")


@deployment_key.command()
@_key_options
@click.argument("generation", type=click.IntRange(0))
def forget(folder: DataFolder, key_file: Path | None, generation: int) -> None:
    """Remove an earlier GENERATION: `contrail replay verify` then calls its messages not judged.

    \b
    contrail deployment-key forget 0 --data data
    """
    with _alone(folder, key_file) as file:
        _write(file, DeploymentKey.load(file).without(generation))
    click.echo(f"generation {generation} is gone from {file}: verify calls its messages not judged")


@deployment_key.command("list")
@_key_options
@click.option("--namespace", help="Show the fingerprints by which streams and etcd of that namespace name the key.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def list_command(folder: DataFolder, key_file: Path | None, namespace: str | None, as_json: bool) -> None:
    """Show the generations of the key, of the secrets nothing.

    \b
    contrail deployment-key list --data data
    contrail deployment-key list --key-file key --namespace prod     with its fingerprints
    """
    key = DeploymentKey.load(key_file or folder.key)
    fingerprints = key.fingerprints(check_namespace(namespace)) if namespace is not None else {}
    value: dict[str, object] = {"generation": key.generation, "known": [*sorted(key.older), key.generation]}
    if fingerprints:
        value["fingerprints"] = fingerprints
    print_result(_text(key, fingerprints), value, as_json=as_json)


def _text(key: DeploymentKey, fingerprints: Mapping[str, str]) -> Text:
    uses = {str(generation): "verifies old chains" for generation in sorted(key.older)}
    uses[str(key.generation)] = "in use"
    if fingerprints:
        rows = [(generation, use, fingerprints[generation]) for generation, use in uses.items()]
        yield Table(("generation", "use", "fingerprint"), rows, "><<")
    else:
        yield Table(("generation", "use"), list(uses.items()), "><")


@contextmanager
def _alone(folder: DataFolder, key_file: Path | None) -> Iterator[Path]:
    """The key file, while no `contrail up` runs on its folder."""
    with ExitStack() as held:
        if key_file is None:
            if not folder.path.is_dir():
                raise CallerError(f"there is no data folder {folder.path}")
            held.enter_context(FolderLock(folder.lock))
        yield key_file or folder.key


def _write(file: Path, key: DeploymentKey) -> None:
    try:
        write_whole(file, key.to_text().encode(), PRIVATE_FILE)
    except OSError as error:
        raise CallerError(f"cannot write {file}: {error.strerror}") from error
