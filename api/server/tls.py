"""The TLS context of a front end: certificate, key, and the protocols that are never spoken."""

from __future__ import annotations

import ssl
from pathlib import Path

from core.errors import CallerError


def tls_context(cert: str, key: str | None) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate; CallerError says which file is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # two ways to the same end: nobody needs either, and both have been attacked
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(Path(cert).expanduser(), None if key is None else Path(key).expanduser())
    except ssl.SSLError as error:
        files = cert if key is None else f"{cert} and {key}"
        raise CallerError(f"TLS: {files}: {_fault(error)}") from error
    except OSError as error:
        missing = next((file for file in (cert, key) if file and not Path(file).expanduser().exists()), cert)
        raise CallerError(f"TLS: cannot read {missing}: {error.strerror}") from error
    return context


def _fault(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not the certificate's"
    return "these are no PEM files with a certificate and its key, without a passphrase"
