"""``privml cert``: make the key and certificate of one party, or show its fingerprint."""

from __future__ import annotations

from pathlib import Path

from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.storage import fs
from privml.transport.identity import Identity


def split(text: str) -> tuple[Path, str]:
    """Split ``DIR/NAME`` into directory and party name."""
    path = Path(text)
    if not path.name:
        raise UsageError(f"the identity {text!r} has no name; write DIR/NAME, like certs/server")
    name = path.name.removesuffix(".crt").removesuffix(".key")
    return path.parent, name


def load(text: str | None) -> Identity | None:
    """Read the identity ``DIR/NAME``; None stays None."""
    if text is None:
        return None
    directory, name = split(text)
    if not fs.exists(directory / f"{name}.key"):
        raise UsageError(
            f"there is no identity {text}; make one with: privml cert {directory / name}"
        )
    return Identity.load(directory, name)


def run(out: Output, *, identity: str, days: int, show: bool) -> None:
    """Make an identity, or show one that exists."""
    directory, name = split(identity)
    party = load(identity) if show else Identity.generate(directory, name, days=days)
    if party is None:
        raise UsageError("name the identity as DIR/NAME")
    out.document({
        "ok": True, "name": party.name, "fingerprint": party.fingerprint,
        "certificate": str(party.certificate_path), "key": str(party.key_path),
    })  # fmt: skip
    if out.mode.quiet:
        out.show(str(party.fingerprint))
        return
    out.show(
        facts(f"identity {party.name}", [
            ("fingerprint", party.fingerprint),
            ("certificate", str(party.certificate_path)),
            ("key", f"{party.key_path} (never leaves this host)"),
        ])
    )  # fmt: skip
    out.note("tell the other party this fingerprint over a way an attacker cannot change")
