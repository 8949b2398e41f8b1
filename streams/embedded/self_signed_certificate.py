"""A self-signed certificate for one server and its clients: only holders of its key are admitted."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streams.embedded.embedded_server import write_private
from streams.embedded.loopback_ports import HOST

VALID_FROM, VALID_UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""Without an end that matters: the folder that holds the key is what protects it."""


def ensure_certificate(cert: Path, key: Path) -> None:
    """Both PEM files are there, for servers and clients on loopback; files that exist stay.

    The subject has no common name, because etcd takes a common name for a user.
    """
    if cert.exists() and key.exists():
        return
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "contrail")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_UNTIL)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    pem, unencrypted = serialization.Encoding.PEM, serialization.NoEncryption()
    write_private(key, secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted).decode())
    write_private(cert, made.public_bytes(pem).decode())
