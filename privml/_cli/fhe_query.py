"""``privml fhe query``: have a remote server classify images that it cannot see."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from privml._cli import fhe_inputs
from privml._cli.fhe_local import part_of
from privml._cli.fhe_scores import documents, table
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.errors import UntrustedArtifact
from privml.protocols.fhe import client as remote
from privml.protocols.fhe.client import Address, new_job
from privml.protocols.fhe.job_file import job_of
from privml.protocols.fhe.sides import FheClient
from privml.protocols.mpc.endpoints import parse_peer
from privml.storage import fs


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    photos: tuple[Path, ...]
    peer: str
    pin: str
    identity: str | None
    signers: tuple[str, ...]
    bundle: Path | None
    program: str | None
    keys: Path | None
    job: Path | None
    save: bool
    connect_s: float
    patience_s: float


def run(out: Output, options: Options) -> None:
    """Send keys and encrypted images, wait for the answers, print the scores."""
    identity = fhe_inputs.identity_of(options.identity, why="the server pins its fingerprint")
    if options.job is not None and options.keys is None:
        raise UsageError("--job goes on with a batch later, which needs the same --keys")
    host, port = parse_peer(options.peer)
    address = Address(
        host, port, identity, options.pin, connect_s=options.connect_s,
        patience_s=options.patience_s,
    )  # fmt: skip
    names, photos = fhe_inputs.read_photos(options.photos)
    client = _client(out, options, address)
    images = client.prepare(photos)
    _keys(out, options, client)
    job, again = new_job(), False
    if options.job is not None:
        job, again = job_of(
            options.job, program=client.program, keys=client.evaluation_keys, images=images
        )
    work = client.work(address, images, job=job)
    start = time.monotonic()

    def progress(done: int, total: int) -> None:
        out.progress("images", done / total)
        out.note(f"image {done} of {total}: {time.monotonic() - start:.1f} s", kind="image")

    work.progress, work.note = progress, out.note
    answer = work.run()
    seconds = time.monotonic() - start
    if options.job is not None:
        fs.unlink(options.job)
    manifest = client.part.manifest
    results = documents(names, answer, manifest.output.labels)
    out.document({
        "ok": True, "program": client.program, "mode": str(answer.mode), "results": results,
        "seconds": round(seconds, 3), "connections": work.connections, "resumed": work.resumed,
        "keys_sent": work.uploads, "contract": manifest.contract, "p_error": manifest.p_error,
        "share_results": manifest.share_results, "licence": manifest.licence,
    })  # fmt: skip
    out.show(table(results, quiet=out.mode.quiet))
    keys = f"{manifest.sizes.keys / 1e6:.1f} MB of keys {work.uploads} times"
    before = "; this batch was begun before" if again else ""
    out.detail(facts("bill", [
        ("time", f"{seconds:.1f} s for {len(names)} images"),
        ("sent", f"{len(images) * manifest.sizes.query:,} bytes of queries, {keys}"),
        ("received", f"{len(images) * manifest.sizes.answer:,} bytes of answers"),
        ("connections", f"{work.connections}, {work.resumed} answers were ready{before}"),
        ("contract", f"{manifest.contract}, p_error {manifest.p_error:.3g}"),
    ]))  # fmt: skip
    out.note("keep these scores: sharing them, even with the server, can leak the key")


def _client(out: Output, options: Options, address: Address) -> FheClient:
    if options.bundle is None:
        part = remote.describe(address, options.program)
        if options.program is None:
            out.note(f"the server offers program {part.manifest.id}; compare it with what its "
                     "operator says, or pass --program")  # fmt: skip
    else:
        part = part_of(options.bundle, options.identity, options.signers, also=options.pin)
    if options.program not in (None, part.manifest.id):
        raise UntrustedArtifact(
            f"the bundle holds program {part.manifest.id}, expected was {options.program}"
        )
    return FheClient(part)


def _keys(out: Output, options: Options, client: FheClient) -> None:
    if options.keys is not None and fs.exists(options.keys):
        client.load_keys(options.keys)
        return
    if options.keys is not None and not options.save:
        raise UsageError(
            f"there are no keys at {options.keys}; make them with `privml fhe keygen`, or pass "
            "--save-secret-key to write new ones there"
        )
    out.progress("drawing keys", 0.0)
    client.keygen()
    if options.keys is not None:
        client.save_keys(options.keys)
