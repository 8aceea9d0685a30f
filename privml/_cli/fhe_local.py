"""The client's verbs on its own machine: show, keygen, encrypt, decrypt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from privml._cli import fhe_inputs
from privml._cli.fhe_scores import documents, table
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.errors import UntrustedArtifact
from privml.protocols.fhe.bundle import ClientPart, read_client, read_server
from privml.protocols.fhe.manifest import Manifest
from privml.protocols.fhe.parties import LIBRARY_FILE
from privml.protocols.fhe.sides import FheClient
from privml.protocols.he import bundle as ckks
from privml.protocols.he.network_file import WEIGHTS
from privml.protocols.he.program import CkksManifest, CkksPart
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

if TYPE_CHECKING:
    from privml.protocols.he.sides import CkksClient

QUERY, ANSWER = ".query", ".answer"
AnyClient: TypeAlias = Union[FheClient, "CkksClient"]
"""A client of either scheme."""


def show(out: Output, folder: Path, *, identity: str | None, signers: Sequence[str]) -> None:
    """Check a bundle and print its manifest."""
    trusted = fhe_inputs.trusted(signers, identity)
    manifest: Manifest | CkksManifest
    if ckks.is_bundle(folder):
        server = fs.exists(folder / WEIGHTS)
        if server:
            manifest = ckks.read_server(folder, trusted=trusted).client.manifest
        else:
            manifest = ckks.read_client(folder, trusted=trusted).manifest
    else:
        server = fs.exists(folder / LIBRARY_FILE)
        if server:
            manifest = read_server(folder, trusted=trusted).manifest
        else:
            manifest = read_client(folder, trusted=trusted).manifest
    import msgspec

    out.document({"ok": True, "program": manifest.id, "kind": "server" if server else "client",
                  "manifest": msgspec.to_builtins(manifest)})  # fmt: skip
    if out.mode.quiet:
        out.show(manifest.id)
        return
    lines = ckks_rows(manifest) if isinstance(manifest, CkksManifest) else rows(manifest)
    out.show(facts("the server's bundle" if server else "the client's bundle", lines))


def ckks_rows(manifest: CkksManifest) -> list[tuple[str, str]]:
    """Return what the manifest of a CKKS program says, for people."""
    shape = " x ".join(map(str, manifest.shape))
    wrong = f"in a share of at most {manifest.failure_probability:.1g} of images"
    return [
        ("program", manifest.id),
        ("network", manifest.network),
        ("scheme", f"CKKS by {manifest.library}; results are approximate"),
        ("image", f"{shape}, real numbers; {manifest.images} in one query"),
        ("front end", manifest.front or "none: clients bring real numbers"),
        ("classes", ", ".join(manifest.labels) or "no names"),
        ("keys", f"{manifest.keys / 1e6:.1f} MB sent"),
        ("error", f"scores off by more than {manifest.error_bound:.2g} {wrong}"),
        ("results", f"sharing them is {manifest.share_results}"),
        ("function privacy", manifest.function_privacy),
        ("licence", manifest.licence),
    ]


def rows(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what a manifest says, for people."""
    kit, sizes, image = manifest.toolkit, manifest.sizes, manifest.input
    proof, record = "", manifest.disagreement
    if record is not None:
        proof = f"; disagreement at most {record.high:.2%} ({record.images} images)"
    shape = " x ".join(map(str, image.shape))
    moved = f"{sizes.keys / 1e6:.1f} MB sent, {sizes.loaded_keys / 1e6:.1f} MB loaded"
    return [
        ("program", manifest.id),
        ("graph", manifest.graph),
        ("toolkit", f"concrete-python {kit.concrete_python}, Python {kit.python}, {kit.machine}"),
        ("image", f"{shape}, integers {image.low} to {image.high}"),
        ("front end", image.front or "none: clients bring integers"),
        ("classes", ", ".join(manifest.output.labels) or str(len(manifest.output.scale))),
        ("bootstraps", f"{manifest.bootstraps:,} an image"),
        ("keys", moved),
        ("contract", f"{manifest.contract}, p_error {manifest.p_error:.3g}{proof}"),
        ("results", f"sharing them is {manifest.share_results}"),
        ("function privacy", manifest.function_privacy),
        ("licence", manifest.licence),
    ]


def keygen(
    out: Output, bundle: Path, *, keys: Path, identity: str | None, signers: Sequence[str],
    save: bool,
) -> None:  # fmt: skip
    """Draw keys and write them."""
    if not save:
        raise UsageError(
            "this writes a secret key to disk; say so with --save-secret-key, or let `privml fhe "
            "query` draw keys that die with it"
        )
    if fs.exists(keys):
        raise UsageError(f"{keys} exists already; keys are never overwritten")
    client = _client(bundle, identity, signers)
    out.progress("drawing keys", 0.0)
    sent = client.keygen()
    client.save_keys(keys)
    out.document({"ok": True, "program": client.program, "keys": str(keys),
                  "evaluation_bytes": len(sent)})  # fmt: skip
    if out.mode.quiet:
        out.show(str(keys))
        return
    out.show(facts("keys", [
        ("program", client.program),
        ("secret", f"{keys / 'secret.keys'} (mode 0600, never leaves this machine)"),
        ("for servers", f"{keys / 'evaluation.keys'}, {len(sent) / 1e6:.1f} MB"),
    ]))  # fmt: skip


def encrypt(
    out: Output, paths: Sequence[Path], *, bundle: Path, keys: Path, folder: Path,
    identity: str | None, signers: Sequence[str],
) -> None:  # fmt: skip
    """Write one query per image into a new folder, all or none."""
    if fs.exists(folder):
        raise UsageError(f"{folder} exists already; choose another folder or remove it first")
    client = _client(bundle, identity, signers)
    client.load_keys(keys)
    names, photos = fhe_inputs.read_photos(paths)
    out.progress("encrypting", 0.0)
    queries = fhe_inputs.prepared(names, photos, client.encrypt)
    files = [f"{i:04d}-{Path(name).stem}{QUERY}" for i, name in enumerate(names)]
    _write_all(folder.absolute(), dict(zip(files, queries, strict=True)))
    out.document({"ok": True, "program": client.program,
                  "queries": [str(folder / name) for name in files]})  # fmt: skip
    size = sum(map(len, queries))
    out.show(f"{len(queries)} queries of {size // len(queries):,} bytes in {folder}")


def decrypt(
    out: Output, paths: Sequence[Path], *, bundle: Path, keys: Path, identity: str | None,
    signers: Sequence[str],
) -> None:  # fmt: skip
    """Print the scores in answers."""
    client = _client(bundle, identity, signers)
    client.load_keys(keys)
    part = client.part
    files = [file for path in paths for file in _answers(path)]
    limit = part.traffic.answer.most
    answer = client.decrypt([read_file(file, limit=limit) for file in files])
    results: list[dict[str, Any]] = documents(
        [file.name for file in files], answer, labels_of(part)
    )
    out.document({"ok": True, "mode": str(answer.mode), "results": results,
                  "share_results": part.manifest.share_results})  # fmt: skip
    out.show(table(results, quiet=out.mode.quiet))
    out.note("keep these scores: sharing them, even with the server, can leak the key")


def _client(bundle: Path, identity: str | None, signers: Sequence[str]) -> AnyClient:
    return client_of(part_of(bundle, identity, signers))


def part_of(
    bundle: Path, identity: str | None, signers: Sequence[str], *, also: str | None = None
) -> ClientPart | CkksPart:
    """Return the client's part of a program from its bundle, of either scheme."""
    trusted = fhe_inputs.trusted(signers, identity, also=also)
    if ckks.is_bundle(bundle):
        return ckks.read_client(bundle, trusted=trusted)
    return read_client(bundle, trusted=trusted)


def client_of(part: ClientPart | CkksPart) -> AnyClient:
    """Return a client without keys for a program of either scheme."""
    if isinstance(part, ClientPart):
        return FheClient(part)
    from privml.protocols.he.sides import CkksClient

    return CkksClient(part)


def labels_of(part: ClientPart | CkksPart) -> tuple[str, ...]:
    """Return the names of a program's classes, or none."""
    if isinstance(part, ClientPart):
        return part.manifest.output.labels
    return part.manifest.labels


def _answers(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.suffix == ANSWER)
    if not found:
        raise UsageError(f"{path} holds no {ANSWER} file")
    return found


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    fs.ensure_dir(folder.parent)
    new = folder.with_name(f".{folder.name}.{os.urandom(8).hex()}.part")
    try:
        fs.ensure_dir(new)
        for name, data in files.items():
            if Path(name).name != name:
                raise UntrustedArtifact(f"{name!r} is no file name")
            atomic_write(new / name, data, replace=False)
        fs.rename(new, folder)
        fs.sync_dir(folder.parent)
    except BaseException:
        fs.remove_tree(new)
        raise
