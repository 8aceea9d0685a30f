"""The product under measurement: dealer, server and client as three processes on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from privml.backbones import Encoded, Encoder
from privml.protocols import mpc
from privml.testing.netem import Link
from privml.transport.identity import Identity
from product_party import encoder_of

PARTY = Path(__file__).with_name("product_party.py")
ROOT = Path(__file__).resolve().parents[2]

Model: TypeAlias = str | dict[str, int]
MINILM: Model = "minilm-l6"
_LAYER = {"layers": 1, "heads": 12, "vocab": 64, "max_positions": 512}
MINILM_LAYER: Model = {**_LAYER, "hidden": 384, "ffn": 1536}
BERT_LAYER: Model = {**_LAYER, "hidden": 768, "ffn": 3072}
BERT_BASE: Model = {**_LAYER, "hidden": 768, "ffn": 3072, "layers": 12}


@dataclass(frozen=True)
class Measured:
    """One run; bytes are payload without framing, `sent` from client to server.

    Attributes
    ----------
    online_s
        Wall seconds of the client from the first on-line message to the opened result.
    prepare_s
        Seconds of the slower party for expanding its correlations, just before.
    flights
        Dependent steps on the link.
    scopes
        Figures per scope of the client's program, see ``Measured.scopes`` of the meter.
    output
        What the client learnt, ``(rows, output_dim)``.
    """

    online_s: float
    prepare_s: float
    setup_s: float
    flights: int
    sent: int
    received: int
    scopes: Mapping[str, Mapping[str, float]]
    output: NDArray[np.float64]

    @property
    def both_ways(self) -> int:
        """Bytes of both directions."""
        return self.sent + self.received


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
        Name of a model, or the sizes of one with random weights.
    n, rows
        Padded tokens and sentences of a run.
    runs
        How many runs to deal for.

    Attributes
    ----------
    encoder
        The same model in the clear.
    plan
        The plan of every run.
    deal_s, deal_bytes
        Off-line seconds of the dealer's process, and bytes to the client, per run.
    """

    def __init__(self, model: Model, *, n: int, rows: int = 1, runs: int) -> None:
        self.encoder: Encoder = encoder_of(model)
        self.private = mpc.PrivateModel(self.encoder)
        self.plan = self.private.plan(n=n, rows=rows)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privml-audit-")))
            self._write(folder, model)
            dealer = _Process("deal", folder)
            dealer.tell(runs=runs)
            dealt = dealer.heard()
            dealer.close()
            self.deal_s = float(dealt["seconds"]) / runs
            self.deal_bytes = int(dealt["bytes"]) // runs
            self._server, self._client = _Process("server", folder), _Process("client", folder)
            stack.callback(self._server.close)
            stack.callback(self._client.close)
            self._port = int(self._server.heard()["port"])
            self._client.heard()
            self._resources = stack.pop_all()

    def _write(self, folder: Path, model: Model) -> None:
        self.plan.save(folder / "plan.json")
        (folder / "model.json").write_text(json.dumps(model), encoding="utf-8")
        for name in ("server", "client"):
            identity = Identity.generate(folder / name, name)
            (folder / f"{name}.pin").write_text(identity.fingerprint, encoding="ascii")

    def run(self, batch: Encoded, *, link: Link | None = None) -> Measured:
        """Run once, over an emulated link if one is given.

        Raises
        ------
        PartyEnded
            A process ended before it answered.
        """
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
