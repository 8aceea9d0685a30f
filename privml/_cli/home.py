"""Private files of one local call, and the command lines of its three processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from privml._cli.inputs import Question
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc.endpoints import connect
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.runtime import ClientRun
from privml.storage.publish import atomic_write
from privml.transport.identity import Identity

Words = list[str | Path]


class Home:
    """A private directory with fresh identities; everything secret passes through its files.

    Parameters
    ----------
    path
        Directory that only this user can enter; its owner removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._plan, self._question = path / "plan.json", path / "question.json"
        self._pools = {name: path / f"{name}.pool" for name in ("server", "client")}
        self._identities = {
            name: Identity.generate(path / f"{name}-identity", name) for name in self._pools
        }
        self._thresholds = path / "thresholds"
        self._used: Words = ["--used", path / "used"]

    def write(
        self, plan: Plan, *, asked: Question | None = None, thresholds: Thresholds | None = None
    ) -> None:
        """Put down the plan, for all, and the secrets of client and server, each for one."""
        plan.save(self._plan)
        if thresholds is not None:
            thresholds.save(self._thresholds)
        if asked is not None:
            atomic_write(self._question, asked.to_json())

    def serve(self, model: str, *, runs: int, thresholds: bool = False) -> Words:
        """Return the server's command line; it reads the plan from stdin, once it is dealt."""
        secret: Words = ["--thresholds", self._thresholds] if thresholds else []
        return ["serve", "--plan", "-", "--model", model, "--pool", self._pools["server"],
                "--port", "0", "--runs", str(runs), *self._tls("server", "client"),
                *self._used, *secret]  # fmt: skip

    def deal(self, *, runs: int) -> Words:
        """Return the dealer's command line."""
        return ["deal", "--plan", self._plan, "--runs", str(runs),
                "--server", self._pools["server"], "--client", self._pools["client"]]  # fmt: skip

    def query(self, port: int) -> Words:
        """Return the client's command line."""
        return ["query", "--plan", self._plan, "--pool", self._pools["client"],
                "--question", self._question, "--peer", f"127.0.0.1:{port}",
                "--cache", self.path / "cache", *self._tls("client", "server"),
                *self._used]  # fmt: skip

    def connect(self, plan: Plan, port: int) -> AbstractContextManager[ClientRun]:
        """Open one run of a client in this process."""
        return connect(
            plan=plan, pool=self._pools["client"], peer=f"127.0.0.1:{port}",
            identity=self._identities["client"], pin=self._identities["server"].fingerprint,
            cache=self.path / "cache", used=self.path / "used",
        )  # fmt: skip

    def _tls(self, mine: str, other: str) -> Words:
        return ["--identity", self.path / f"{mine}-identity" / mine,
                "--pin", self._identities[other].fingerprint]  # fmt: skip
