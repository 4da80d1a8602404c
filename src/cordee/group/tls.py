"""A certificate for one run: made when the run starts, kept in memory, bound to the token by the handshake."""

from __future__ import annotations

import datetime
import os
import ssl
import time
from dataclasses import dataclass

from cordee.core.errors import SecurityError

VALID = datetime.timedelta(days=30)
RENEW_S = VALID.total_seconds() / 2
"""What listens for longer makes itself a new certificate."""
SLACK = datetime.timedelta(days=1)
"""How far the clocks of hosts may be apart."""


@dataclass(frozen=True)
class ServerTls:
    """What a hub needs to serve TLS, and the certificate that the proofs are bound to."""

    context: ssl.SSLContext
    certificate: bytes


def check_dates(certificate: bytes) -> None:
    """Refuse a certificate that has expired, or is not valid yet."""
    from cryptography import x509

    read = x509.load_der_x509_certificate(certificate)
    now = datetime.datetime.now(datetime.timezone.utc)
    if not read.not_valid_before_utc <= now <= read.not_valid_after_utc:
        raise SecurityError(
            f"the launcher's certificate is valid from {read.not_valid_before_utc:%Y-%m-%d} to "
            f"{read.not_valid_after_utc:%Y-%m-%d}, but it is {now:%Y-%m-%d} here: check the clocks of the hosts, and "
            "start the run anew"
        )


def make_server_tls(valid: datetime.timedelta = VALID) -> ServerTls:
    """A fresh key and self-signed certificate, `valid` from now on."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cordee")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK + min(valid, datetime.timedelta(0)))
        .not_valid_after(now + valid)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # ssl reads keys from files only: this one is in memory, and no other process finds it.
    with os.fdopen(os.memfd_create("cordee-key"), "wb") as file:
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return ServerTls(context, certificate.public_bytes(serialization.Encoding.DER))


class Certificates:
    """Those of one listener: another one before the last one expires."""

    def __init__(self, *, tls: bool) -> None:
        """Without `tls` there is none."""
        self._last: ServerTls | None = make_server_tls() if tls else None
        self._made = time.monotonic()

    def now(self) -> ServerTls | None:
        """For a new connection; it keeps it."""
        if self._last is not None and time.monotonic() - self._made > RENEW_S:
            self._last, self._made = make_server_tls(), time.monotonic()
        return self._last
