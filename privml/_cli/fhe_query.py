"""``privml fhe query``: have a remote server classify images that it cannot see."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privml._cli import fhe_inputs
from privml._cli.fhe_local import AnyClient, client_of, labels_of, part_of
from privml._cli.fhe_scores import documents, table
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.errors import UntrustedArtifact
from privml.protocols.fhe import client as remote
from privml.protocols.fhe.bundle import ClientPart
from privml.protocols.fhe.client import Address, Work, new_job
from privml.protocols.fhe.frequency import Photo
from privml.protocols.fhe.job_file import job_of
from privml.protocols.fhe.manifest import Manifest, Sizes
from privml.protocols.fhe.nodes import Floats, Ints
from privml.protocols.he.program import CkksManifest, CkksPart, is_ckks
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
    images = fhe_inputs.prepared(names, photos, _preparing(client))
    _keys(out, options, client)
    job, again = new_job(), False
    if options.job is not None:
        job, again = job_of(
            options.job, program=client.program, keys=client.evaluation_keys, images=images
        )
    work = work_of(client, address, images, job)
    start = time.monotonic()
    unit = "image" if len(work.images) == len(names) else "batch of images"

    def progress(done: int, total: int) -> None:
        out.progress("images", done / total)
        out.note(f"{unit} {done} of {total}: {time.monotonic() - start:.1f} s", kind="image")

    work.progress, work.note = progress, out.note
    answer = work.run()
    seconds = time.monotonic() - start
    if options.job is not None:
        fs.unlink(options.job)
    queries, sizes = len(work.images), _sizes(client.part)
    results = documents(names, answer, labels_of(client.part))
    manifest = client.part.manifest
    out.document({
        "ok": True, "program": client.program, "scheme": manifest.scheme,
        "mode": str(answer.mode), "results": results, "seconds": round(seconds, 3),
        "queries": queries, "connections": work.connections, "resumed": work.resumed,
        "keys_sent": work.uploads, **_claim(manifest),
        "share_results": manifest.share_results, "licence": manifest.licence,
    })  # fmt: skip
    out.show(table(results, quiet=out.mode.quiet))
    keys = f"{sizes.keys / 1e6:.1f} MB of keys {work.uploads} times"
    before = "; this batch was begun before" if again else ""
    claim = ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.3g}'}"
        for name, value in _claim(manifest).items()
    )
    out.detail(facts("bill", [
        ("time", f"{seconds:.1f} s; images: {len(names)}, queries: {queries}"),
        ("sent", f"{queries * sizes.query:,} bytes of queries, {keys}"),
        ("received", f"{queries * sizes.answer:,} bytes of answers"),
        ("connections", f"{work.connections}, {work.resumed} answers were ready{before}"),
        ("claim", claim),
    ]))  # fmt: skip
    out.note("keep these scores: sharing them, even with the server, can leak the key")


def _preparing(client: AnyClient) -> Callable[[Sequence[Photo]], Ints | Floats]:
    return client.prepare


def work_of(client: AnyClient, address: Address, images: Any, job: str) -> Work[Any]:  # noqa: ANN401
    """Return the batch of a client of either scheme; ``images`` as its ``prepare`` gave them."""
    return client.work(address, images, job=job)


def _sizes(part: ClientPart | CkksPart) -> Sizes:
    if isinstance(part, ClientPart):
        return part.manifest.sizes
    return Sizes(part.manifest.keys, part.manifest.query, part.manifest.answer, 0)


def _claim(manifest: Manifest | CkksManifest) -> dict[str, str | float]:
    if isinstance(manifest, Manifest):
        return {"contract": manifest.contract, "p_error": manifest.p_error}
    return {
        "error_bound": manifest.error_bound, "failure_probability": manifest.failure_probability,
    }  # fmt: skip


def _client(out: Output, options: Options, address: Address) -> AnyClient:
    part: ClientPart | CkksPart
    if options.bundle is None:
        data = remote.ask_part(address, options.program)
        part = CkksPart.from_bytes(data) if is_ckks(data) else ClientPart.from_bytes(data)
        if options.program is None:
            out.note(f"the server offers program {part.id}; compare it with what its "
                     "operator says, or pass --program")  # fmt: skip
    else:
        part = part_of(options.bundle, options.identity, options.signers, also=options.pin)
    if options.program not in (None, part.id):
        whose = "the server sent" if options.bundle is None else "the bundle holds"
        raise UntrustedArtifact(f"{whose} program {part.id}, expected was {options.program}")
    return client_of(part)


def _keys(out: Output, options: Options, client: AnyClient) -> None:
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
