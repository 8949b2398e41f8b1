"""Fixtures stand in tests/fixtures, one file per real part that they start."""

pytest_plugins = [
    "tests.fixtures.chance",
    "tests.fixtures.nats",
    "tests.fixtures.etcd",
    "tests.fixtures.engines",
    "tests.fixtures.local_user",
    "tests.fixtures.nats_cluster",
    "tests.fixtures.certificate",
    "tests.fixtures.worlds",
]
