"""A certificate for one run: made when the run starts, kept in memory, bound to the token by the handshake."""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerTls:
    """What a hub needs to serve TLS, and the certificate that the proofs are bound to."""

    context: ssl.SSLContext
    certificate: bytes


def make_server_tls() -> ServerTls:
    """A fresh key and self-signed certificate, valid for 30 days."""
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
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
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
