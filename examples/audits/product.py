"""The product under measurement: dealer, server and client as three processes on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from product_party import Model, encoder_of, pool_path, secret_spec

from privml.backbones import Encoded, Encoder
from privml.protocols import mpc
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.fields import Seeds
from privml.rng import Csprng
from privml.storage import fs
from privml.testing.netem import Link
from privml.transport.identity import Identity

PARTY = Path(__file__).with_name("product_party.py")
ROOT = Path(__file__).resolve().parents[2]
POOL_BYTES = 4_000_000_000  # of corrections on disk at a time

MINILM = Model(name="minilm-l6")
MINILM_LAYER = Model()
BERT_LAYER = Model(hidden=768, ffn=3072)
BERT_BASE = replace(BERT_LAYER, layers=12)


@dataclass(frozen=True)
class Measured:
    """One run; bytes are payload without framing, `sent` from client to server.

    Attributes
    ----------
    online_s
        Wall seconds of the client from the first on-line message to the opened result.
    prepare_s
        Seconds of the slower party for expanding its correlations, just before.
    setup_s
        Seconds of the client for what the server sends once per pool.
    flights
        Dependent steps on the link.
    scopes
        Figures per scope of the client's program, see ``Measured.scopes`` of the meter.
    output
        What the client learnt, ``(rows, output_dim)``.
    counts
        Rows kept and rows of high importance after each layer but the last, of a pruned run.
    length
        Rows that a pruned run began with.
    """

    online_s: float
    prepare_s: float
    setup_s: float
    flights: int
    sent: int
    received: int
    scopes: Mapping[str, Mapping[str, float]]
    output: NDArray[np.float64]
    counts: Sequence[Sequence[int]] = ()
    length: int = 0


@lru_cache(maxsize=2)
def _encoder(model: Model) -> Encoder:
    return encoder_of(model)


class PartyEnded(Exception):
    """A process of the measured run ended; the text is its last message."""


class _Process:
    """A party's process and its line protocol."""

    def __init__(self, role: str, folder: Path) -> None:
        self._log = folder / f"{role}.log"
        with self._log.open("w", encoding="utf-8") as log:
            self._popen = subprocess.Popen(
                [sys.executable, str(PARTY), role, str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
            )  # fmt: skip

    def tell(self, **command: object) -> None:
        if self._popen.stdin is not None and self._popen.poll() is None:
            with suppress(BrokenPipeError):  # the missing answer says why
                self._popen.stdin.write(json.dumps(command) + "\n")
                self._popen.stdin.flush()

    def heard(self) -> dict[str, Any]:
        line = self._popen.stdout.readline() if self._popen.stdout is not None else ""
        if not line:
            self.close()
            last = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            raise PartyEnded(" ".join(last) or "a party ended without a message")
        return dict(json.loads(line))

    def close(self) -> None:
        try:
            self._popen.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.communicate()


class Product:
    """A private model on two processes with its correlations dealt; context manager.

    Parameters
    ----------
    model
        What to run.
    n, rows
        Padded tokens and sentences of a run.
    per_pool
        Runs to deal for at a time; fewer if their correlations would fill the disk.

    Attributes
    ----------
    encoder
        The same model in the clear.
    plan
        The plan of every run.
    """

    def __init__(
        self, model: Model, *, n: int, rows: int = 1, per_pool: int = 8,
        spec: mpc.Spec | None = None,
    ) -> None:  # fmt: skip
        self.private = mpc.PrivateModel(_encoder(model), secret_spec(spec or mpc.Spec(), model))
        self.encoder: Encoder = self.private.encoder
        self.plan = self.private.plan(n=n, rows=rows)
        self._runs = max(1, min(per_pool, POOL_BYTES // max(self.plan.cost.corrections, 1)))
        self._left = self._pools = 0
        self._deal_s = 0.0
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privml-audit-")))
            self._folder = folder
            self._write(folder, model)
            parties = [_Process(role, folder) for role in ("deal", "server", "client")]
            self._dealer, self._server, self._client = parties
            for party in parties:
                stack.callback(party.close)
            self._port = int(self._server.heard()["port"])
            self._client.heard()
            self._resources = stack.pop_all()

    @property
    def deal_s(self) -> float:
        """Seconds of the dealer's process per run; it deals before the first run."""
        return self._deal_s / (self._pools * self._runs)

    @property
    def deal_bytes(self) -> int:
        """Bytes from the dealer to the client per run."""
        return self.plan.cost.corrections

    def _write(self, folder: Path, model: Model) -> None:
        self.plan.save(folder / "plan.json")
        (folder / "model.json").write_text(json.dumps(asdict(model)), encoding="utf-8")
        for name in ("server", "client"):
            identity = Identity.generate(folder / name, name)
            (folder / f"{name}.pin").write_text(identity.fingerprint, encoding="ascii")

    def _deal(self) -> None:
        """Deal for some more runs, while the parties wait without the spent pool."""
        if self._left:
            return
        for party in (self._server, self._client):
            party.tell(spent=True)
            party.heard()
        self._pools += 1
        self._dealer.tell(pool=self._pools, runs=self._runs)
        self._deal_s += float(self._dealer.heard()["seconds"])
        for party in (self._server, self._client):
            party.tell(pool=self._pools)
            party.heard()
        self._left = self._runs

    def keys(self) -> Seeds:
        """Return the keys of the next run, as only a dealer has them: from both parties' pools."""
        self._deal()
        index, runs, setup = self._runs - self._left, [], b""
        for role in ("server", "client"):
            with fs.File.open(pool_path(self._folder, role, self._pools)) as file:
                header, digest = layout.decode_header(file.read_at(0, layout.HEADER_BYTES))
                entry = file.read_at(layout.Layout.entry(index), layout.ENTRY_BYTES)
            runs.append(Csprng(bytes(layout.decode_entry(entry, digest, index) or b"")))
            setup = setup or bytes.fromhex(header.setup)
        return Seeds((runs[0], runs[1]), Csprng(setup))

    def run(self, batch: Encoded, *, link: Link | None = None) -> Measured:
        """Run once, over an emulated link if one is given.

        Raises
        ------
        PartyEnded
            A process ended before it answered.
        """
        self._deal()
        self._left -= 1
        over = {} if link is None else {"link": [link.name, link.bits_per_s, link.rtt_s]}
        self._server.tell(**over)
        self._client.tell(ids=batch.ids.tolist(), mask=batch.mask.tolist(), port=self._port, **over)
        mine = self._client.heard()
        bill, theirs = mine["bill"], self._server.heard()["bill"]
        return Measured(
            online_s=bill["online_s"],
            prepare_s=max(bill["prepare_s"], theirs["prepare_s"]),
            setup_s=bill["setup_s"],
            flights=bill["flights"],
            sent=bill["sent"],
            received=bill["received"],
            scopes=bill["by_op"]["scopes"],
            output=np.array(mine["output"]),
            counts=bill["counts"],
            length=bill["length"],
        )

    def close(self) -> None:
        """End the processes and remove their files."""
        self._resources.close()

    def __enter__(self) -> Product:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
