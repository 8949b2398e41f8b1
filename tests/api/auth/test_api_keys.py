"""API keys: what is kept of them, and how a front end notices that they change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.auth.access_policy import exposure_warnings, isolation_note, with_checked_files
from api.auth.api_keys import KEYS_BYTES_MAX, read_keys
from api.auth.keyring import CHECK_EVERY_MS, Keyring
from api.config.deployment_ref import route_token
from api.config.schema import Deployment, FrontendSection, FrontendTls, RouteSection
from core.clock import ManualClock
from core.errors import CallerError
from tests.api.guarded import NOON_MS, made, run
from tests.fixtures.certificate import Certificate


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_key_is_shown_once_and_kept_as_a_digest(file: Path) -> None:
    """Neither the file nor the list has it, and the file is its owner's alone."""
    key = made(file, "team", "--model", "tiny", "--expires", "90d")

    assert len(key) > 40
    assert key not in file.read_text() + run("list", "--file", str(file)) + run("list", "--file", str(file), "--json")
    assert file.stat().st_mode & 0o777 == 0o600
    (kept,) = read_keys(file)
    assert (kept.name, kept.tenant, kept.models) == ("team", "team", ("tiny",))
    assert made(file) != key
    assert [each.name for each in read_keys(file)] == ["team", "team-2"]


def test_revoking_takes_one_line(file: Path) -> None:
    """Comments and other keys stay as they were, and so does the mode."""
    file.write_text("# ours\n")
    file.chmod(0o640)
    made(file, "a")
    made(file, "b")
    before = file.read_text().splitlines()

    assert run("revoke", "--file", str(file), "a") == "revoked a, of tenant a"

    assert file.read_text().splitlines() == [before[0], before[2]]
    assert file.stat().st_mode & 0o777 == 0o640
    with pytest.raises(CallerError, match="has no key 'a'"):
        run("revoke", "--file", str(file), "a")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tenant", "a b"), "--tenant: use 1 to 64"),
        (("--tenant", "t", "--name", "a\nb"), "--name: use 1 to 128"),
        (("--tenant", "t", "--expires", "soon"), "give a duration"),
        (("--tenant", "t", "--expires", "2040-01-01T00:00:00"), "which time zone"),
        (("--tenant", "t", "--expires", "2020-01-01T00:00:00Z"), "over already"),
        (("--tenant", "t", "--name", "there"), "has a key 'there' already"),
    ],
)
def test_what_cannot_be_a_key_is_said(file: Path, words: tuple[str, ...], text: str) -> None:
    """One sentence, and the file is as it was."""
    made(file, "t", "--name", "there")
    before = file.read_bytes()
    with pytest.raises(CallerError, match=text):
        run("create", "--file", str(file), *words)
    assert file.read_bytes() == before


GOOD = '{"name": "n", "tenant": "t", "sha256": "' + "a" * 64 + '"'


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("sk-secret-in-clear", "line 1: this is no JSON object"),
        ('{"name": "n", "tenant": "t"}', "missing required field `sha256`"),
        (GOOD + ', "modles": ["tiny"]}', "unknown field `modles`"),
        (GOOD.replace('"t"', '"a:b"') + "}", "line 1: Expected `str` matching regex"),
        (GOOD.replace("aa", "") + "}", "line 1: "),
        (GOOD + "}\n" + GOOD + "}", "line 2: the key 'n' stands there twice"),
        (GOOD + ', "expires": "2040-01-01T00:00:00"}', "timezone"),
        ("#" * (KEYS_BYTES_MAX + 1), "longer than"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(file: Path, content: str, text: str) -> None:
    """A deployment does not start with it, and what was written there in clear is not shown."""
    file.write_text(content)
    with pytest.raises(CallerError, match=text) as raised:
        with_checked_files(Deployment(frontend=FrontendSection(keys=str(file))), ManualClock())
    assert "secret" not in str(raised.value)
    assert str(file) in str(raised.value)


def test_no_file_no_start(file: Path) -> None:
    """Open by mistake would be worse than not at all."""
    with pytest.raises(CallerError, match="cannot read the API keys"):
        Keyring(file, ManualClock())


def test_a_file_that_others_can_read_is_warned_about(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By its mode; a file that others can write, too."""
    made(file)
    for mode, text in ((0o600, ""), (0o604, "can read who has keys"), (0o602, "can add keys")):
        file.chmod(mode)
        caplog.clear()
        Keyring(file, ManualClock())
        assert text in caplog.text
        assert bool(text) == bool(caplog.records)


def find_later(keyring: Keyring, clock: ManualClock, key: str) -> bool:
    clock.advance(CHECK_EVERY_MS)
    return keyring.find(key.encode()) is not None


def test_a_change_is_noticed_and_a_broken_file_opens_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New keys open, revoked ones do not, within CHECK_EVERY_MS; junk or no file opens nothing, and says so once."""
    first, clock = made(file, "first"), ManualClock(NOON_MS)
    keyring = Keyring(file, clock)
    second = made(file, "second")
    assert keyring.find(second.encode()) is None  # looked just now
    assert find_later(keyring, clock, second)
    run("revoke", "--file", str(file), "first")
    assert not find_later(keyring, clock, first)
    good = file.read_bytes()
    for breaking, unreadable in ((lambda: file.write_text("{"), False), (file.unlink, True)):
        caplog.clear()
        breaking()
        assert not find_later(keyring, clock, second)
        assert not find_later(keyring, clock, second)
        assert keyring.unreadable is unreadable
        assert len(caplog.records) == 1
        file.write_bytes(good)
        assert find_later(keyring, clock, second)


def test_a_front_end_starts_without_the_bad_lines(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is started again does not stay away for a line that a running one skips; a key is revoked beside it."""
    good = made(file, "good")
    bad = made(file, "bad")
    file.write_text(file.read_text() + "junk\n")
    assert Keyring(file, ManualClock(NOON_MS)).find(good.encode()) is not None
    assert f"{file}, line 3" in caplog.text
    run("revoke", "--file", str(file), "bad")
    assert file.read_text().endswith("junk\n")
    assert Keyring(file, ManualClock(NOON_MS)).find(bad.encode()) is None
    with pytest.raises(CallerError, match="line 2"):
        made(file, "third")


def test_a_key_ends_when_it_says(file: Path) -> None:
    """Without the file being touched."""
    file.write_text(GOOD.replace("a" * 64, "b" * 64) + ', "expires": "2027-01-01T00:00:00Z"}')
    (key,) = read_keys(file)
    assert key.expires is not None
    end_ms = int(key.expires.timestamp() * 1000)
    assert [key.has_expired(now_ms) for now_ms in (end_ms - 1, end_ms)] == [False, True]
    text = made(file, "t", "--expires", "1h")
    clock = ManualClock(int(file.stat().st_mtime * 1000))
    keyring = Keyring(file, clock)
    assert keyring.find(text.encode()) is not None
    clock.advance(3_600_001)
    assert keyring.find(text.encode()) is None


def test_a_deployment_is_looked_at_before_it_starts(
    file: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are found from wherever its parts stand; one that cannot be used is said at once."""
    made(file)
    monkeypatch.chdir(file.parent)
    tls = FrontendTls(cert=os.path.relpath(certificate.cert), key=str(certificate.key))
    whole = with_checked_files(Deployment(frontend=FrontendSection(keys=file.name, tls=tls)), ManualClock())
    assert whole.frontend.keys == str(file)
    assert whole.frontend.tls is not None
    assert Path(whole.frontend.tls.cert).is_absolute()
    assert with_checked_files(Deployment(), ManualClock()) == Deployment()
    Path("token").write_text("word\n")
    routed = with_checked_files(
        Deployment(frontend=FrontendSection(route=RouteSection(token_file="token"))), ManualClock()
    )
    assert routed.frontend.route == RouteSection(token_file=str(file.with_name("token")))
    assert route_token(routed.frontend.route) == "word"
    for broken in (
        FrontendSection(keys="none"),
        FrontendSection(tls=FrontendTls(cert="none")),
        FrontendSection(route=RouteSection(token_file="none")),
    ):
        with pytest.raises(CallerError, match="none"):
            with_checked_files(Deployment(frontend=broken), ManualClock())


@pytest.mark.parametrize(
    ("listen", "keys", "tls", "text"),
    [
        ("127.0.0.1:0", None, None, ""),
        ("[::1]:0", "keys", None, ""),
        ("0.0.0.0:0", None, None, "everybody who reaches 0.0.0.0 may ask"),
        ("10.0.0.1:0", "keys", None, "cross the network in clear"),
        ("10.0.0.1:0", "keys", FrontendTls(cert="c"), ""),
    ],
)
def test_what_is_open_is_said(listen: str, keys: str | None, tls: FrontendTls | None, text: str) -> None:
    """Beyond loopback only."""
    section = FrontendSection(listen=listen, keys=keys, tls=tls)
    assert text in " ".join(exposure_warnings(section, section.host))
    assert bool(text) == bool(exposure_warnings(section, section.host))


def test_the_start_says_whether_tenants_share_caches(file: Path) -> None:
    """With keys of several tenants, or of a gateway; either way it names the setting."""
    run("create", "--file", str(file), "--tenant", "a")

    def note(isolate: bool | None) -> str | None:
        return isolation_note(FrontendSection(keys=str(file), isolate_tenants=isolate))

    assert [note(isolate) for isolate in (None, True, False)] == [None] * 3
    run("create", "--file", str(file), "--tenant", "a", "--name", "gate", "--gateway")
    for isolate, text in (
        (None, "a cache of its own"),
        (True, "a cache of its own"),
        (False, "tenants share one cache"),
    ):
        found = note(isolate)
        assert found is not None
        assert text in found
        assert "`frontend.isolate_tenants: false`" in found
    assert isolation_note(FrontendSection(isolate_tenants=False)) is None


@pytest.mark.parametrize(
    "priority", ["1:2", "-2:-1", "5:-5", "-2147483648:0", "0:2147483648", "5", "", "a:b", "-1:1:2"]
)
def test_an_allowance_lies_around_zero(file: Path, priority: str) -> None:
    """The command and the file refuse another one; at the bounds, both take it."""
    with pytest.raises(CallerError, match="give the lowest and the highest, with 0 between them"):
        run("create", "--file", str(file), "--tenant", "a", "--priority", priority)
    run("create", "--file", str(file), "--tenant", "a", "--priority", "-2147483647:2147483647")
    assert read_keys(file)[0].priority == (-2147483647, 2147483647)
    assert "-2147483647:2147483647" in run("list", "--file", str(file))
    for wrong in (b"[1, 2]", b"[-2, -1]", b"[5, -5]", b"[-2147483648, 0]", b"5", b"[0]"):
        file.write_bytes(b'{"name": "x", "tenant": "x", "sha256": "%s", "priority": %s}\n' % (b"0" * 64, wrong))
        with pytest.raises(CallerError, match="line 1: "):
            read_keys(file)
