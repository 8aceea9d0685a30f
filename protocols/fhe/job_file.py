"""What a client notes of a batch, so that another process can go on: no image and no key."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Literal

import msgspec

from privml.backbones.digests import canonical_json
from privml.errors import Corrupt, UntrustedArtifact
from privml.protocols.fhe.client import new_job
from privml.protocols.fhe.manifest import Hex
from privml.protocols.fhe.messages import JobId
from privml.protocols.fhe.nodes import Floats, Ints
from privml.rng import Csprng
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

_MAX_BYTES = 4096


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["privml.fhe.job.1"]
    job: JobId
    program: Hex
    keys: Hex
    salt: Hex
    images: Hex


def job_of(path: Path, *, program: str, keys: bytes, images: Ints | Floats) -> tuple[str, bool]:
    """Return the id of the job noted in a file, or of a new one that is noted there first.

    Parameters
    ----------
    path
        Written with mode 0600 if it is not there; holds a salted digest of the images.
    program, keys, images
        What the job is about; a file of another job is refused.

    Returns
    -------
    str, bool
        The id, and whether it was noted before.

    Raises
    ------
    UntrustedArtifact
        The file is of another program, other keys or other images.
    Corrupt
        It is no job file.
    """
    digest = hashlib.sha256(keys).hexdigest()
    if fs.exists(path):
        found = _read(path)
        mine = (program, digest, _images(bytes.fromhex(found.salt), images))
        if mine != (found.program, found.keys, found.images):
            raise UntrustedArtifact(
                f"{path} notes a batch of another program, other keys or other images; name "
                "another file to begin a new one"
            )
        return found.job, True
    salt, job = Csprng.fresh().token(32), new_job()
    note = {
        "format": "privml.fhe.job.1", "job": job, "program": program, "keys": digest,
        "salt": salt.hex(), "images": _images(salt, images),
    }  # fmt: skip
    fs.ensure_dir(path.absolute().parent)
    atomic_write(path, canonical_json(note), mode=0o600, replace=False)
    return job, False


def _read(path: Path) -> _Document:
    try:
        return msgspec.json.decode(read_file(path, limit=_MAX_BYTES), type=_Document, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} notes no batch of images: {error}") from error


def _images(salt: bytes, images: Ints | Floats) -> str:
    state = hmac.new(salt, repr(images.shape).encode(), hashlib.sha256)
    state.update(images.astype("<f8" if images.dtype.kind == "f" else "<i8").tobytes())
    return state.hexdigest()
