"""``privml infer``: dealer, server and client as three processes on this machine, over TLS."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privml._cli import classify
from privml._cli.children import Child, Children, Event
from privml._cli.home import Home
from privml._cli.inputs import Question, fit_labels
from privml._cli.output import Output, UsageError
from privml._cli.private import PRIVATE_PREFIX, hold_private, sweep_private
from privml._cli.pruning import KEEP, Local
from privml._cli.result import combine, show
from privml._cli.tables import facts, megabytes, plan_rows
from privml.errors import ParameterError
from privml.params import check, outside
from privml.protocols.cipherprune.spec import PruneSpec, Reveal
from privml.protocols.mpc.spec import EmbeddingMode, Spec
from privml.storage import fs

if TYPE_CHECKING:
    from privml.backbones.batch import Encoded
    from privml.backbones.encoder import Encoder
    from privml.protocols.mpc.plan import Plan

#: Padded lengths are multiples of this; it hides the exact length of the longest text.
STEP = 8
#: Tokens that one run embeds; longer batches take several runs, so that memory stays bounded.
RUN_TOKENS = 256
_CLEAR_ROWS = 32
#: Seconds that a process may take to start, and for its work.
START_S, WORK_S = 300.0, 3600.0


@dataclass(frozen=True)
class Job:
    """What is fixed once the texts are tokenised, before any process is started."""

    asked: Question
    name: str
    encoder: Encoder
    batch: Encoded
    length: int
    rows: int
    runs: int
    prune: PruneSpec | None = None


def pruning(
    wanted: bool, *, thresholds: Path | None, reveal: Reveal | None, keep: float | None
) -> Local | None:
    """Check the options of pruning; ``None`` without it.

    Raises
    ------
    UsageError, ParameterError
        They do not fit together, or the share is out of range.
    """
    if not wanted:
        if thresholds is not None or reveal is not None or keep is not None:
            raise UsageError("--thresholds, --reveal and --keep belong to --cipherprune; add it")
        return None
    if thresholds is not None and (keep is not None or reveal == "schedule"):
        raise UsageError("--thresholds say what is kept: leave --keep and --reveal schedule out")
    check("pruning", outside("keep", KEEP if keep is None else keep, 0.01, 1.0))
    return Local(thresholds=thresholds, reveal=reveal, keep=KEEP if keep is None else keep)


def run(
    out: Output, asked: Question, *, model: str, n: int | None, embedding: EmbeddingMode,
    prune: Local | None = None,
) -> None:  # fmt: skip
    """Classify privately, compare with the clear model, print everything."""
    document = classify_here(out, asked, model=model, n=n, embedding=embedding, prune=prune)
    out.document({"ok": True, **document})


def classify_here(
    out: Output, asked: Question, *, model: str, n: int | None = None,
    embedding: EmbeddingMode = "released", prune: Local | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Do the whole job, show it, and return it as plain values; see :func:`work`."""
    found = work(out, asked, model=model, n=n, embedding=embedding, prune=prune)
    show(out, found)
    return found


def work(
    out: Output, asked: Question, *, model: str, n: int | None = None,
    embedding: EmbeddingMode = "released", prune: Local | None = None, plan_shown: bool = True,
    rows: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Do the whole job and return it as plain values.

    Parameters
    ----------
    rows
        Texts and labels per run; as many as memory allows by default, with ``prune`` always one.

    Raises
    ------
    UsageError, ParameterError
        Texts, labels or length do not fit the model; nothing was started.
    Failure
        A process failed; all others were stopped and the files removed.
    """
    clock = Clock()
    job = _read(out, asked, model, n, prune, rows)
    clock.lap("load")
    hear = Listener(out).hear
    with private_directory() as folder, Children(hear, private=folder) as children:
        home = Home(folder)
        learned = None if job.prune is None else job.prune.thresholds
        command = home.serve(model, runs=job.runs, thresholds=learned is not None)
        server = children.start("server", command, stdin=True)
        plan = _plan(out, job, embedding)
        clock.lap("plan")
        check_room(folder, plan, job.runs)
        if plan_shown:
            out.detail(facts("plan", plan_rows(plan.summary())))
        home.write(plan, asked=job.asked, thresholds=learned)
        dealer = children.start("dealer", home.deal(runs=job.runs))
        clear = _clear(job)
        dealt = children.result(dealer, limit_s=WORK_S)
        clock.lap("deal")
        port = listening(children, server, plan)
        clock.lap("server_ready")
        client = children.start("client", home.query(port))
        got = children.result(client, limit_s=WORK_S)
        served = children.result(server, limit_s=START_S)
        clock.lap("query")
    clear_answers = classify.decide(plan, job.asked, clear)
    return combine(plan, job.runs, got, served, dealt, clear_answers, clock.laps)


class Clock:
    """Wall time of the parts of a job."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Charge the time since the last lap to ``name``."""
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self.laps["all"] = now - self._began
        self._last = now


class Listener:
    """Turns what the children report into progress and notes.

    Parameters
    ----------
    announce
        Say where the server listens.
    """

    def __init__(self, out: Output, *, announce: bool = True) -> None:
        self._out, self._announce = out, announce

    def hear(self, child: Child, event: Event) -> None:
        """Take one event."""
        if event["event"] == "progress":
            if child.name != "server" or child.port is None:
                self._out.progress(f"{child.name}: {event['stage']}", float(event["fraction"]))
        elif event.get("kind") == "listening":
            child.port = int(event["port"])
            if self._announce:
                self._out.note(f"server: {event['text']}")
        elif event.get("kind") == "failed":
            self._out.note(f"server: {event['text']}")


@contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a directory with mode 0700 that is removed at the end, whatever happens.

    If this process is killed, its children remove it; if none is left, the next start does.
    """
    sweep_private(Path(tempfile.gettempdir()))
    made = tempfile.TemporaryDirectory(prefix=PRIVATE_PREFIX, ignore_cleanup_errors=True)
    with made as folder, hold_private(Path(folder)):
        yield Path(folder)


def _read(
    out: Output, asked: Question, name: str, n: int | None, prune: Local | None, rows: int | None
) -> Job:  # fmt: skip
    """Load the model and tokenise; every error of the input shows here."""
    out.progress(f"loading {name}", 0.0)
    from privml.backbones.loader import load_encoder

    encoder = load_encoder(name)
    asked = fit_labels(asked, encoder.config.labels, model=name)
    tokenizer = classify.need_tokenizer(encoder.tokenizer, model=name)
    top = tokenizer.max_length
    if n is not None and not 1 <= n <= top:
        raise ParameterError(f"n = {n} must lie in [1, {top}], the limit of {name}")
    batch = classify.encode(tokenizer, asked, length=n)
    length = n or min(-(-batch.length // STEP) * STEP, top)
    if prune is not None:
        out.progress("choosing what to keep", 0.0)
        spec = prune.spec(encoder, length)
        return Job(asked, name, encoder, batch, length, 1, batch.batch_size, spec)
    rows = min(batch.batch_size, rows or max(1, RUN_TOKENS // length))
    runs = -(-batch.batch_size // rows)
    return Job(asked, name, encoder, batch, length, -(-batch.batch_size // runs), runs)


def _plan(out: Output, job: Job, embedding: EmbeddingMode) -> Plan:
    out.progress("calibrating ranges", 0.0)
    from privml.protocols.mpc.model import PrivateModel

    private = PrivateModel(job.encoder, Spec(embedding=embedding, prune=job.prune))
    return private.plan(n=job.length, rows=job.rows)


def _clear(job: Job) -> NDArray[np.float64]:
    """Evaluate the float model here, without pruning, for the comparison only."""
    starts = range(0, job.batch.batch_size, _CLEAR_ROWS)
    parts = [job.encoder(job.batch.rows(k, k + _CLEAR_ROWS)).detach().numpy() for k in starts]
    return np.concatenate(parts).astype(np.float64)


def check_room(folder: Path, plan: Plan, runs: int) -> None:
    """Refuse before anything is dealt if the correlations do not fit on the disk."""
    need = runs * plan.pool_bytes() + 2 * plan.setup_bytes() + (64 << 20)
    free = fs.free_bytes(folder)
    if need > free:
        raise UsageError(
            f"the correlations need {megabytes(need / 1e6)} in {folder.parent}, which has "
            f"{megabytes(free / 1e6)} free; set TMPDIR to a larger disk, or pass fewer texts"
        )


def listening(children: Children, server: Child, plan: Plan) -> int:
    """Give the server its plan and return the port that it listens on."""
    server.feed(plan.to_json())
    children.until(lambda: server.port is not None, limit_s=START_S, what="starting the server")
    if server.port is None:
        raise AssertionError("internal error in privml: a server without a port")
    return server.port
