"""``privml fhe serve``: compute for pinned clients, or for one query on stdin."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from privml._cli import fhe_inputs
from privml._cli.main import Terminated
from privml._cli.output import Output, UsageError
from privml.errors import UntrustedArtifact
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.bundle import ServerPart, read_server
from privml.protocols.fhe.key_ring import load_evaluation
from privml.protocols.fhe.launcher import Limits
from privml.protocols.fhe.secrets_scan import refuse_secrets
from privml.protocols.fhe.service import Quota, Service, ServiceEvent
from privml.protocols.fhe.sides import FheServer
from privml.protocols.he import bundle as ckks
from privml.protocols.he import tenseal_backend
from privml.protocols.he.program import CkksServer
from privml.storage import fs

_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    bundles: tuple[Path, ...]
    identity: str | None
    signers: tuple[str, ...]
    pins: tuple[str, ...]
    state: Path | None
    host: str
    port: int
    threads: int
    images: int | None
    keep_s: float
    key_clients: int
    key_mb: float
    answers_mb: float
    keys: Path | None
    accepted: bool


def run(out: Output, options: Options) -> None:
    """Serve until so many images were computed, or a signal arrives."""
    identity = fhe_inputs.identity_of(options.identity, why="clients pin its fingerprint")
    if not options.pins:
        raise UsageError("pin at least one client's fingerprint with --pin; nobody could connect")
    parts = _parts(options)
    own = None if options.state is not None else Path(tempfile.mkdtemp(prefix="privml-fhe-keys-"))
    log = _Log(out, options.images)
    try:
        with Service(
            parts, identity=identity, pins=options.pins, state=options.state or own or Path(),
            host=options.host, port=options.port, on_event=log.hear,
            limits={part.id: _limits(part, options.threads) for part in parts},
            quota=Quota(
                key_clients=options.key_clients, key_bytes=int(options.key_mb * 1e6),
                board_bytes=int(options.answers_mb * 1e6), keep_s=options.keep_s,
            ),
        ) as service:  # fmt: skip
            service.start()
            for part in parts:
                out.note(f"program {part.id}")
            apart = "has no network" if service.isolated else "could not leave the network"
            out.note(
                f"listening on {options.host} port {service.port} over mutual TLS; the process "
                f"that computes {apart}",
                kind="listening", port=service.port,
            )  # fmt: skip
            out.note(f"clients pin this fingerprint: {identity.fingerprint}")
            ended = log.until_done(service)
    finally:
        if own is not None:
            fs.remove_tree(own)
    out.note(f"{ended}; images: {log.counts['image']}, failed: {log.counts['failed']}")
    out.document({"ok": True, "ended": ended, "images": log.counts["image"],
                  "failed": log.counts["failed"], "evicted": log.counts["evicted"],
                  "seconds": round(log.seconds, 3)})  # fmt: skip


def once(options: Options) -> None:
    """Answer the query on stdin by the evaluation keys of a file."""
    if len(options.bundles) != 1 or options.keys is None:
        raise UsageError("--stdin takes one --bundle and the client's evaluation.keys with --keys")
    (part,) = _parts(options)
    program, keys = load_evaluation(options.keys)
    if program != part.id:
        raise UntrustedArtifact(
            f"these keys belong to program {program[:16]}, not to {part.id[:16]}"
        )
    query = sys.stdin.buffer.read(part.traffic.query.most + 1)
    with FheServer(part, limits=_limits(part, options.threads)) as server:
        answer = server.run(query, keys)
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _parts(options: Options) -> list[ServerPart | CkksServer]:
    """Read all bundles; what each scheme needs is checked before anything starts."""
    trusted = fhe_inputs.trusted(options.signers, options.identity)
    for folder in options.bundles:
        if folder.is_dir():
            refuse_secrets(folder)
    return [_part(folder, trusted, options) for folder in options.bundles]


def _part(folder: Path, trusted: set[str], options: Options) -> ServerPart | CkksServer:
    if ckks.is_bundle(folder):
        _require(tenseal_backend.missing())
        return ckks.read_server(folder, trusted=trusted)
    fhe_inputs.acknowledge(options.accepted)
    _require(toolkit.missing())
    return read_server(folder, trusted=trusted)


def _limits(part: ServerPart | CkksServer, threads: int) -> Limits:
    if isinstance(part, ServerPart):
        return Limits.of(part.manifest, threads=threads)
    return part.limits(threads=threads)


def _require(problem: str | None) -> None:
    if problem is not None:
        raise UsageError(problem)


class _Log:
    """Counts and prints what happens; several threads call it."""

    def __init__(self, out: Output, images: int | None) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self._out, self._images, self._lock = out, images, threading.Lock()

    def hear(self, event: ServiceEvent) -> None:
        """Take one event."""
        with self._lock:
            self.counts[event.kind] += 1
            self.seconds += event.seconds
            self._out.note(f"{event.kind}: {event.message}", kind=event.kind)

    def until_done(self, service: Service) -> str:
        """Wait until enough images were fetched, or for a signal."""
        try:
            while not service.wait(_POLL_S):
                enough = self._images is not None and self.counts["image"] >= self._images
                if enough and not service.busy:
                    return "done"
        except (KeyboardInterrupt, Terminated):
            return "stopped by a signal"
        return "stopped"
