"""TLS identities on disk: private, never overwritten, refused when unusable."""

from __future__ import annotations

from pathlib import Path

import pytest

from privml.errors import ParameterError, StorageError, UntrustedArtifact
from privml.transport.tls import Identity


def test_files(tmp_path: Path) -> None:
    made = Identity.generate(tmp_path / "new" / "folder", "alice")
    assert made.key_path.stat().st_mode & 0o777 == 0o600
    assert made.key_path.parent.stat().st_mode & 0o777 == 0o700
    assert Identity.load(made.key_path.parent, "alice") == made
    assert len(made.fingerprint) == 64


def test_never_overwrites(tmp_path: Path) -> None:
    made = Identity.generate(tmp_path, "alice")
    with pytest.raises(StorageError, match="exists"):
        Identity.generate(tmp_path, "alice")
    assert Identity.load(tmp_path, "alice") == made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_readable_key_is_refused(tmp_path: Path, mode: int) -> None:
    made = Identity.generate(tmp_path, "alice")
    made.key_path.chmod(mode)
    with pytest.raises(UntrustedArtifact, match="chmod 600"):
        Identity.load(tmp_path, "alice")


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Identity.load(tmp_path, "nobody")
    made = Identity.generate(tmp_path, "alice")
    made.certificate_path.write_bytes(b"not a certificate")
    with pytest.raises(UntrustedArtifact, match="no certificate"):
        Identity.load(tmp_path, "alice")


def test_key_of_another_certificate(tmp_path: Path) -> None:
    alice, bob = (Identity.generate(tmp_path, name) for name in ("alice", "bob"))
    for wrong in (bob.key_path.read_bytes(), b"", b"no key"):
        alice.key_path.write_bytes(wrong)
        with pytest.raises(UntrustedArtifact, match="does not hold the key"):
            Identity.load(tmp_path, "alice")


def test_key_that_is_a_link(tmp_path: Path) -> None:
    alice, bob = (Identity.generate(tmp_path, name) for name in ("alice", "bob"))
    alice.key_path.unlink()
    alice.key_path.symlink_to(bob.key_path)
    with pytest.raises(StorageError):
        Identity.load(tmp_path, "alice")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "a b"])
def test_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="name"):
        Identity.generate(tmp_path, name)


@pytest.mark.parametrize("options", [{"days": 0}, {"curve": "rsa"}])
def test_options(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        Identity.generate(tmp_path, "alice", **options)
