"""TLS identities: a private key, a self-signed certificate, and its fingerprint.

A certificate proves nothing but possession of its key; whom it belongs to is decided by pinning
its fingerprint, which the owners pass to each other over a way they trust.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privml._typing import Bytes, Fingerprint
from privml.errors import MalformedMessage, ParameterError, UntrustedArtifact
from privml.party import check_name
from privml.storage import fs
from privml.storage.publish import atomic_write

MAX_CERTIFICATE_BYTES = 4096
_MAX_PEM_BYTES = 1 << 14
_VALID_DAYS = 365
_SKEW = datetime.timedelta(minutes=5)


def fingerprint_of(der: Bytes) -> Fingerprint:
    """Return the SHA-256 of a DER certificate as 64 lower-case hex digits."""
    return Fingerprint(hashlib.sha256(der).hexdigest())


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and certificate on disk.

    Attributes
    ----------
    name
        Name of the party; also the stem of the two files.
    certificate_path, key_path
        PEM files; the key has mode 0600 and never leaves its file.
    certificate
        DER bytes, public.
    fingerprint
        SHA-256 of `certificate`, for the peer to pin.
    """

    name: str
    certificate_path: Path
    key_path: Path
    certificate: bytes
    fingerprint: Fingerprint

    @classmethod
    def generate(
        cls, directory: Path | str, name: str, *, days: int = _VALID_DAYS, curve: str = "ed25519"
    ) -> Identity:
        """Make a new key and self-signed certificate in `directory`.

        Parameters
        ----------
        directory
            Made with mode 0700 if missing.
        name
            Party name; files are ``<name>.crt`` and ``<name>.key``, which must not exist.
        days
            Validity from now, at least 1.
        curve
            ``"ed25519"`` or ``"p256"``.

        Raises
        ------
        ParameterError
            Name, days or curve are out of range.
        StorageError
            A file exists already or cannot be written.
        """
        if days < 1:
            raise ParameterError(f"a certificate is valid for at least 1 day, got {days}")
        key = _new_key(curve)
        now = datetime.datetime.now(datetime.UTC)
        certificate = build_certificate(
            key, check_name(name), start=now - _SKEW, end=now + datetime.timedelta(days=days)
        )
        directory = Path(directory)
        fs.ensure_dir(directory)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        atomic_write(directory / f"{name}.key", pem, mode=0o600, replace=False)
        public = certificate.public_bytes(serialization.Encoding.PEM)
        atomic_write(directory / f"{name}.crt", public, mode=0o644, replace=False)
        return cls.load(directory, name)

    @classmethod
    def load(cls, directory: Path | str, name: str) -> Identity:
        """Read the identity `name` from `directory`.

        Raises
        ------
        UntrustedArtifact
            The key can be read by other users or belongs to another certificate, or the
            certificate is unusable or out of date.
        StorageError
            A file is missing.
        """
        directory = Path(directory)
        certificate_path = directory / f"{check_name(name)}.crt"
        key_path = directory / f"{name}.key"
        with fs.File.open(certificate_path) as file:
            public = file.read_at(0, _MAX_PEM_BYTES)
        with fs.File.open(key_path) as file:
            mode = stat.S_IMODE(os.fstat(file.fd).st_mode)
            secret = file.read_at(0, _MAX_PEM_BYTES)
        if mode & 0o077:
            raise UntrustedArtifact(
                f"the key {key_path} can be read by other users (mode {mode:04o}); if no one "
                f"else had access run: chmod 600 {key_path}; else make a new identity"
            )
        try:
            certificate = x509.load_pem_x509_certificate(public)
        except ValueError as error:
            raise UntrustedArtifact(
                f"{certificate_path} holds no certificate; make a new identity"
            ) from error
        if not _owns(secret, certificate):
            raise UntrustedArtifact(
                f"{key_path} does not hold the key of {certificate_path}; restore both files "
                "together, or make a new identity"
            )
        der = certificate.public_bytes(serialization.Encoding.DER)
        check_certificate(der, owner="this side")
        return cls(name, certificate_path, key_path, der, fingerprint_of(der))


def _owns(secret: bytes, certificate: x509.Certificate) -> bool:
    """Return whether the PEM bytes `secret` are the unencrypted key of `certificate`."""
    try:
        key = serialization.load_pem_private_key(secret, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


_Key = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


def _new_key(curve: str) -> _Key:
    if curve == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    if curve == "p256":
        return ec.generate_private_key(ec.SECP256R1())
    raise ParameterError(f"curve must be 'ed25519' or 'p256', got {curve!r}")


def build_certificate(
    key: _Key, name: str, *, start: datetime.datetime, end: datetime.datetime
) -> x509.Certificate:
    """Return a self-signed certificate for TLS client and server use, valid `start` to `end`."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm)


def check_certificate(der: Bytes, *, owner: str) -> None:
    """Check the form and dates of a DER certificate; its key is not proved by this.

    Parameters
    ----------
    der
        At most 4096 bytes.
    owner
        Whose it is, for the message.

    Raises
    ------
    MalformedMessage
        Not a DER certificate.
    UntrustedArtifact
        Out of date, or not an Ed25519 or P-256 key.
    """
    try:
        certificate = x509.load_der_x509_certificate(bytes(der))
        key = certificate.public_key()
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except Exception as error:
        raise MalformedMessage(f"{owner} presented bytes that are no certificate") from error
    fine = isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    )
    shown = f"the certificate of {owner}, fingerprint {fingerprint_of(der)},"
    if not fine:
        raise UntrustedArtifact(f"{shown} has no Ed25519 or P-256 key; make a new identity")
    now = datetime.datetime.now(datetime.UTC)
    if now > end:
        raise UntrustedArtifact(
            f"{shown} expired on {end:%Y-%m-%d %H:%M} UTC; its owner makes a new identity and "
            "the peer pins the new fingerprint"
        )
    if now < start:
        raise UntrustedArtifact(
            f"{shown} is valid only from {start:%Y-%m-%d %H:%M} UTC; check the clocks"
        )
