"""LinkTls: TLS on the connections between parts, by certificates of the operator. Both sides check the other's.

Both contexts take TLS 1.3 alone. A worker's certificate must name the host under which the worker is registered; of a
client's certificate only the authority counts, because the mutual proof of `actors.transport.handshake` has its id.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from pathlib import Path

from core.errors import CallerError

_logger = logging.getLogger(__name__)

_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate: give cert and key in link.tls here, too",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it refuses the certificate of link.tls here: that has expired",
    "TLSV1_ALERT_UNKNOWN_CA": "it refuses the certificate of link.tls here: its `ca` knows another authority",
    "WRONG_VERSION_NUMBER": "it speaks no TLS: give link.tls there, too",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is refused here",
}
"""Sentences for the failures of a handshake, by OpenSSL's names of the reasons."""


class _AlertingHandshake(ssl.SSLObject):
    """A handshake whose failure is also sent to the other side: event loops close the connection before the alert that
    says why. The failure is raised when the other side has answered or closed, or by the handshake's time limit."""

    _failed = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self._failed:
                raise
            self._failed = True
            raise ssl.SSLWantReadError from error


class LinkTls:
    """The contexts for both directions. Renewed files are read for the next connection."""

    def __init__(self, cert: Path, key: Path, ca: Path) -> None:
        """PEM files: this part's certificate with its chain, its key, and the authority of all parts. CallerError says
        which file is wrong."""
        self._files = (cert, key, ca)
        self.server = _context(ssl.PROTOCOL_TLS_SERVER)
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.server.sslobject_class = _AlertingHandshake
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT)
        self.digest = b""
        """SHA-256 of this part's certificate."""
        self._load()
        self._versions = self._seen()

    def __repr__(self) -> str:
        return f"<LinkTls with {self._files[0]}>"

    def refresh(self) -> None:
        """Files that were renewed are loaded; with a fault in them the old ones stay, and the log says so. Three calls
        of `stat`. An authority that is gone from the file is still trusted until the process ends."""
        try:
            seen = self._seen()
            if seen != self._versions:
                self._load()
                self._versions = seen
        except (OSError, CallerError) as error:
            _logger.error("link.tls: the renewed files are not taken: %s", error)  # noqa: TRY400  # its text says it all

    def _seen(self) -> list[tuple[int, int, int]]:
        return [(status.st_mtime_ns, status.st_ino, status.st_size) for file in self._files if (status := file.stat())]

    def _load(self) -> None:
        cert, key, ca = self._files
        try:
            for context in (self.server, self.client):
                context.load_cert_chain(cert, key, password="")  # without it, OpenSSL asks at the terminal
                context.load_verify_locations(ca)
            self.digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first_certificate(cert))).digest()
        except ssl.SSLError as error:
            raise CallerError(f"link.tls: {cert}, {key} and {ca} are no certificate, its key and an authority in PEM "
                              f"({error.reason or error})") from error  # fmt: skip
        except (OSError, ValueError) as error:
            missing = next((file for file in self._files if not file.exists()), cert)
            raise CallerError(f"link.tls: cannot read {missing}: {error}") from error


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _first_certificate(file: Path) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = file.read_text()
    start = text.index(begin)
    return text[start : text.index(end, start) + len(end)]


def peer_digest(peer: ssl.SSLObject | None) -> bytes:
    """SHA-256 of the certificate that the other side showed; empty without TLS."""
    der = None if peer is None else peer.getpeercert(binary_form=True)
    return hashlib.sha256(der).digest() if der else b""


def tls_fault(error: BaseException) -> str:
    """One sentence for a failed TLS handshake, or for the alert by which the other side ended it; empty for any other
    error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused here: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return ""
    return _ALERTS.get(error.reason or "", f"TLS: {error.reason or error}")
