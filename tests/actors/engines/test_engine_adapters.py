"""Adapters of an engine: copies, digests, numbers, and their end behind the last request."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from actors.engines import engine_adapters
from actors.engines.engine_adapters import AdapterCopy, EngineAdapters, check_adapter_name
from core.errors import CallerError, Unavailable
from tests.fixtures.adapter_folder import adapter_folder


async def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    """Of weights and configuration: equal files elsewhere have it, too, and nothing is loaded twice."""
    adapters = EngineAdapters()
    first = await adapters.load("sql", adapter_folder(tmp_path / "a", b"one"))
    same = await adapters.load("sql", adapter_folder(tmp_path / "b", b"one"))
    twin = await adapters.load("other", str(tmp_path / "b"))
    changed = await adapters.load("sql", adapter_folder(tmp_path / "a", b"two"))
    ranked = await adapters.load("sql", adapter_folder(tmp_path / "a", b"two", rank=4))
    assert same == first
    assert (twin.digest, twin.id) == (first.digest, f"other@{first.digest}")
    assert len({first.digest, changed.digest, ranked.digest}) == 3
    assert (first.rank, ranked.rank) == (8, 4)
    numbers = [copy.number for copy in adapters.served()]
    assert numbers == sorted(set(numbers))
    adapters.close()
    assert not first.folder.exists()


async def test_a_copy_stays_as_it_was(tmp_path: Path) -> None:
    """Whatever becomes of the files that were given."""
    adapters = EngineAdapters()
    copy = await adapters.load("sql", adapter_folder(tmp_path / "a", b"one"))
    adapter_folder(tmp_path / "a", b"two")
    assert (copy.folder / "adapter_model.safetensors").read_bytes() == b"one"
    adapters.close()


async def test_what_a_killed_process_left_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of a live one stay, and so does what only looks like them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "contrail-adapters-left"
    adapter_folder(left, b"one")
    (tmp_path / "contrail-adapters-link").symlink_to(tmp_path)
    live, later = EngineAdapters(), EngineAdapters()
    copy = await live.load("sql", adapter_folder(tmp_path / "a", b"one"))
    assert not left.exists()
    await later.load("sql", str(tmp_path / "a"))
    assert (copy.folder / "adapter_model.safetensors").read_bytes() == b"one"
    later.close()
    live.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "contrail-adapters-link"]


async def test_it_goes_behind_its_last_request(tmp_path: Path) -> None:
    """New requests are refused at once. Numbers are never used again."""
    gone: list[AdapterCopy] = []

    async def detach(copy: AdapterCopy) -> None:
        gone.append(copy)

    adapters = EngineAdapters(detach=detach)
    copy = await adapters.load("sql", adapter_folder(tmp_path / "a", b"one"))
    with adapters.using(copy.id):
        leaving = asyncio.create_task(adapters.unload(copy.id))
        await asyncio.sleep(0)
        assert adapters.served() == []
        with pytest.raises(Unavailable, match="not served here any more"), adapters.using(copy.id):
            pass
        assert (gone, copy.folder.exists()) == ([], True)
    await leaving
    assert (gone, copy.folder.exists()) == ([copy], False)
    again = await adapters.load("sql", str(tmp_path / "a"))
    assert (again.id, again.folder, again.number > copy.number) == (copy.id, copy.folder, True)
    adapters.close()


async def test_loaded_again_before_it_is_gone(tmp_path: Path) -> None:
    """It stays, under its number."""
    adapters = EngineAdapters()
    copy = await adapters.load("sql", adapter_folder(tmp_path / "a", b"one"))
    with adapters.using(copy.id):
        leaving = asyncio.create_task(adapters.unload(copy.id))
        await asyncio.sleep(0)
        assert await adapters.load("sql", str(tmp_path / "a")) == copy
    await leaving
    with adapters.using(copy.id) as still:
        assert still.folder.exists()
    adapters.close()


async def test_an_adapter_that_the_engine_refuses(tmp_path: Path) -> None:
    """Nothing is left of it."""

    async def attach(_: AdapterCopy) -> None:
        raise CallerError("it does not fit")

    adapters = EngineAdapters(attach)
    with pytest.raises(CallerError, match="does not fit"):
        await adapters.load("sql", adapter_folder(tmp_path / "a", b"one"))
    assert adapters.served() == []
    assert adapters._home is not None
    assert [*adapters._home.iterdir()] == []
    adapters.close()


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "with a rank `r`"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": 0}'), "the rank `r` is 0"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "no file of weights"),
        (lambda folder: folder.rename(folder.with_name("moved")), "cannot be read: No such file"),
    ],
    ids=["no configuration", "no rank", "rank 0", "no weights", "no folder"],
)
async def test_no_adapter(tmp_path: Path, spoil: object, fault: str) -> None:
    """A sentence says what the folder lacks."""
    folder = adapter_folder(tmp_path / "a", b"one")
    spoil(Path(folder))  # type: ignore[operator]
    adapters = EngineAdapters()
    with pytest.raises(CallerError, match=fault):
        await adapters.load("sql", folder)
    assert adapters.served() == []
    adapters.close()


async def test_they_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADAPTERS_MAX."""
    monkeypatch.setattr(engine_adapters, "ADAPTERS_MAX", 1)
    adapters = EngineAdapters()
    await adapters.load("a", adapter_folder(tmp_path / "a", b"one"))
    with pytest.raises(CallerError, match="has 1 adapters, and may have no more"):
        await adapters.load("b", adapter_folder(tmp_path / "b", b"two"))
    staged = await adapters.stage("b", str(tmp_path / "b"))
    with pytest.raises(Unavailable, match="has 1 adapters"):
        await adapters.attach(staged.id)
    adapters.close()


async def test_staged_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are read by the engine when they are attached, under one number, and stay when they are detached."""
    done: list[str] = []

    async def attach(copy: AdapterCopy) -> None:
        done.append(f"+{copy.number}")

    async def detach(copy: AdapterCopy) -> None:
        done.append(f"-{copy.number}")

    adapters = EngineAdapters(attach, detach)
    copy = await adapters.stage("sql", adapter_folder(tmp_path / "a", b"one"))
    assert (adapters.served(), adapters.sources(), done) == ([], {}, [])
    with pytest.raises(Unavailable, match="not served here any more"), adapters.using(copy.id):
        pass
    for _ in range(2):
        await adapters.attach(copy.id)
        await adapters.attach(copy.id)
        with adapters.using(copy.id) as used:
            assert used == copy
        await adapters.detach(copy.id)
        await adapters.detach(copy.id)
    assert (done, copy.folder.exists()) == (["+1", "-1", "+1", "-1"], True)
    loaded = await adapters.load("law", adapter_folder(tmp_path / "b", b"two"))
    assert await adapters.stage("law", str(tmp_path / "b")) == loaded
    assert (adapters.served(), done[4:]) == ([], [f"+{loaded.number}", f"-{loaded.number}"])
    monkeypatch.setattr(engine_adapters, "STAGED_MAX", 2)
    with pytest.raises(CallerError, match="has copies of 2 adapters"):
        await adapters.stage("tax", adapter_folder(tmp_path / "c", b"three"))
    await adapters.attach(copy.id)
    await adapters.detach_all()
    assert done[-1] == "-1"
    adapters.close()


@pytest.mark.parametrize("name", ["", "a@b", "a*", "line\nbreak", "x" * 129])
def test_names(name: str) -> None:
    """No separator, no pattern, printable, and of a bounded length."""
    with pytest.raises(CallerError, match="the name of an adapter"):
        check_adapter_name(name)
