"""The records of a catalogue: blocks, their tenants, and what is passed over."""

from __future__ import annotations

from actors.kv_blocks.catalog_records import (
    RECORD_BYTES,
    UNKNOWN_TENANT,
    CatalogEntry,
    CatalogRecords,
    catalog_bytes,
    digest_of_salt,
    tenant_digest,
)
from tests.actors.kv_blocks.test_pool_folder import KEY, KIND, OTHER_KEY, OTHER_KIND, name

ACME = tenant_digest(KEY, "acme")
RECORDS = CatalogRecords(KEY, KIND)
ENTRIES = {
    name(1): CatalogEntry(1001, None, ACME),
    name(2): CatalogEntry(1002, 1001, ACME),
    name(3): CatalogEntry(1003, None, tenant_digest(KEY, "")),
    name(4): CatalogEntry(1004, 1003),
}


def test_entries_are_read_back_with_their_tenants() -> None:
    raw = RECORDS.encode(ENTRIES)
    assert RECORDS.decode(raw) == ENTRIES
    assert len(raw) == catalog_bytes(ENTRIES) == 7 * RECORD_BYTES


def test_a_record_without_a_tenant_is_that_of_the_version_before() -> None:
    """A catalogue of that version is read, and its bytes are the same."""
    raw = RECORDS.encode({name(4): CatalogEntry(1004, 1003)})
    assert raw.hex() == (
        "ea7e5069a24d00a6a44ba1f43d4424e9"  # the file's name
        "0f8c541b6a9bda4f598ae14c37a9bd0e"  # block and parent under the pad
        "47dd0ed585d2169a0ab691010af3a09a"
    )
    assert RECORDS.decode(raw) == {name(4): CatalogEntry(1004, 1003, UNKNOWN_TENANT)}


def test_the_version_before_passes_over_tenants() -> None:
    """It reads each record by the proof of a block alone. So it finds the blocks, and nothing else."""
    raw = RECORDS.encode(ENTRIES)
    records = [raw[at : at + RECORD_BYTES] for at in range(0, len(raw), RECORD_BYTES)]
    proved = [record[:16] for record in records if RECORDS._open(record, b"proof")]
    assert proved == [*ENTRIES]


def test_torn_forged_and_strange_records_are_passed_over() -> None:
    raw = RECORDS.encode(ENTRIES)
    for cut in range(len(raw)):
        found = RECORDS.decode(raw[:cut])
        whole = sum(at <= cut for at in (48, 144, 240, 336))
        assert [entry.block for entry in found.values()] == [1001, 1002, 1003, 1004][:whole]
        assert {entry.tenant for entry in found.values()} <= {ACME, tenant_digest(KEY, ""), UNKNOWN_TENANT}
    for at in range(RECORD_BYTES, 2 * RECORD_BYTES):
        forged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        assert RECORDS.decode(forged)[name(1)] == CatalogEntry(1001, None, UNKNOWN_TENANT)
    moved = raw[: 2 * RECORD_BYTES] + raw[RECORD_BYTES : 2 * RECORD_BYTES] + raw[4 * RECORD_BYTES : 5 * RECORD_BYTES]
    assert RECORDS.decode(moved + raw[3 * RECORD_BYTES : 4 * RECORD_BYTES])[name(3)].tenant == UNKNOWN_TENANT
    for key, kind in ((OTHER_KEY, KIND), (KEY, OTHER_KIND)):
        assert CatalogRecords(key, kind).decode(raw) == {}


def test_a_tenants_digest_is_keyed_and_hidden() -> None:
    """Equal in all pools of a deployment, different under another key; its record shows it under a pad that is another
    one for each file."""
    assert digest_of_salt(KEY, "acme:") == digest_of_salt(KEY, "acme:more") == ACME
    assert digest_of_salt(KEY, "") == digest_of_salt(KEY, ":given") == digest_of_salt(KEY, "given")
    assert len({ACME, tenant_digest(KEY, ""), tenant_digest(KEY, "acm"), tenant_digest(OTHER_KEY, "acme")}) == 4
    raw = RECORDS.encode(ENTRIES)
    assert ACME not in raw
    assert b"acme" not in raw
    assert raw[RECORD_BYTES + 16 : RECORD_BYTES + 32] != raw[3 * RECORD_BYTES + 16 : 3 * RECORD_BYTES + 32]
