"""Signatures of an operator over the index of a bundle, by the key of the TLS identity.

The signed bytes begin with a purpose that no TLS handshake signs. A certificate in a signature
proves nothing by itself: its fingerprint must be one that the reader trusts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from msgspec import Meta

from privml.backbones.digests import canonical_json
from privml.errors import MalformedMessage, UntrustedArtifact
from privml.storage.files import read_file
from privml.transport.identity import MAX_CERTIFICATE_BYTES, Identity, fingerprint_of

MAX_SIGNATURE_BYTES: Final = 1 << 14
_PURPOSE: Final = b"privml fhe bundle index v1\0"
_MAX_PEM_BYTES: Final = 1 << 14

_Hex = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{2})+\Z", max_length=2 * MAX_CERTIFICATE_BYTES)]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["privml.fhe.signature.1"]
    certificate: _Hex
    signature: _Hex


def sign(data: bytes, *, identity: Identity) -> bytes:
    """Return the signature document of ``data``.

    Raises
    ------
    UntrustedArtifact
        The key file holds no usable key.
    """
    pem = read_file(identity.key_path, limit=_MAX_PEM_BYTES)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise UntrustedArtifact(
            f"{identity.key_path} holds no usable key; make a new identity"
        ) from error
    if isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(_PURPOSE + data)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(_PURPOSE + data, ec.ECDSA(hashes.SHA256()))
    else:
        raise UntrustedArtifact(f"{identity.key_path} holds no Ed25519 or P-256 key")
    return canonical_json({
        "format": "privml.fhe.signature.1", "certificate": identity.certificate.hex(),
        "signature": signature.hex(),
    })  # fmt: skip


def verify(document: bytes, data: bytes, *, trusted: Collection[str]) -> str:
    """Return the fingerprint of the trusted certificate whose key signed ``data``.

    Raises
    ------
    UntrustedArtifact
        Nobody trusted signed these bytes.
    MalformedMessage
        The document is no signature.
    """
    if len(document) > MAX_SIGNATURE_BYTES:
        raise MalformedMessage(f"the signature is longer than {MAX_SIGNATURE_BYTES} bytes")
    try:
        read = msgspec.json.decode(document, type=_Document, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"the signature is not valid: {error}") from error
    der = bytes.fromhex(read.certificate)
    fingerprint = fingerprint_of(der)
    if fingerprint not in trusted:
        raise UntrustedArtifact(
            f"the bundle was signed by {fingerprint}, whom this side does not trust; native code "
            "of others is never loaded: compile it yourself from the integer graph"
        )
    try:
        key = x509.load_der_x509_certificate(der).public_key()
        signature = bytes.fromhex(read.signature)
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, _PURPOSE + data)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, _PURPOSE + data, ec.ECDSA(hashes.SHA256()))
        else:
            raise UntrustedArtifact("the bundle was signed with another kind of key")
    except (InvalidSignature, ValueError) as error:
        raise UntrustedArtifact(
            "the index of the bundle was changed after it was signed; restore or compile it again"
        ) from error
    return fingerprint
