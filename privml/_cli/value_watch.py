"""What a sampled run shows of itself: progress with time left, and the trace that reports draw.

The trace keeps whole states of the estimate after chosen rounds. Two neighbours differ by the units
between them, which is how ``privml value verify`` can check some units without repeating all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from privml._cli.output import Output
from privml.backbones import run_state
from privml.errors import Corrupt, ParameterError
from privml.valuation.problem import Floats
from privml.valuation.result import ValuationResult
from privml.valuation.stopping import Progress

_SAID_EVERY_S: Final = 10.0
_SHOWN_EVERY_S: Final = 0.2
_CELLS: Final = 4_000_000
_MOST: Final = 64
_COLUMNS: Final = ("rounds", "units", "evaluations", "stderr")


@dataclass
class Trace:
    """States after some rounds: units, evaluations, largest error, and the values.

    Rounds ``r`` with ``r % stride`` of 0 or 1 are kept; the stride doubles when there are too many,
    so what is kept depends on the number of rounds only.
    """

    rounds: list[int] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    stderr: list[float] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    stride: int = 1

    def add(self, number: int, progress: Progress) -> None:
        """Take a state after round ``number``."""
        while self.rounds and self.rounds[-1] >= number:
            self._drop(len(self.rounds) - 1)
        if number % self.stride > 1:
            return
        self._take(number, progress)
        most = max(4, min(_MOST, _CELLS // max(1, len(progress.values))))
        while len(self.rounds) > most:
            self.stride *= 2
            for at in reversed(range(len(self.rounds))):
                if self.rounds[at] % self.stride > 1:
                    self._drop(at)

    def end(self, number: int, progress: Progress) -> None:
        """Take the last state of a run, whatever its round."""
        while self.rounds and self.rounds[-1] >= number:
            self._drop(len(self.rounds) - 1)
        self._take(number, progress)

    def _take(self, number: int, progress: Progress) -> None:
        self.rounds.append(number)
        self.units.append(progress.units)
        self.evaluations.append(progress.evaluations)
        known = progress.stderr[np.isfinite(progress.stderr)]
        self.stderr.append(float(known.max()) if len(known) else float("nan"))
        self.values.append(progress.values.copy())

    def _drop(self, at: int) -> None:
        for column in (self.rounds, self.units, self.evaluations, self.stderr, self.values):
            del column[at]

    def save(self, path: Path, run: str) -> None:
        """Replace the file of the trace."""
        arrays: dict[str, Any] = {
            "rounds": np.array(self.rounds, dtype=np.int64),
            "units": np.array(self.units, dtype=np.int64),
            "evaluations": np.array(self.evaluations, dtype=np.int64),
            "stderr": np.array(self.stderr, dtype=np.float64),
            "values": np.array(self.values, dtype=np.float64),
        }
        run_state.save_run(path, run=run, arrays=arrays, state={"stride": self.stride})

    @classmethod
    def load(cls, path: Path, run: str, *, keep_last: bool = True) -> Trace:
        """Return a saved trace, an empty one if there is none or it is of another run.

        ``keep_last=False`` drops a last state that is only there because the run ended with it.
        """
        try:
            saved = run_state.load_run(path, run=run)
        except (Corrupt, ParameterError):
            return cls()
        if saved is None:
            return cls()
        arrays = saved.arrays
        try:
            columns = [arrays[name].tolist() for name in _COLUMNS]
            values = [np.array(row, dtype=np.float64) for row in arrays["values"]]
            if len({len(values), *map(len, columns)}) != 1:
                return cls()
            rounds, units, evaluations, stderr = columns
            stride = int(str(saved.state["stride"]))
            found = cls(rounds, units, evaluations, stderr, values, stride)
            if keep_last or not rounds or rounds[-1] % stride <= 1:
                return found
            found._drop(len(rounds) - 1)
            return found
        except (KeyError, ValueError, TypeError):
            return cls()


@dataclass
class Limits:
    """What ends a run, for the share that is done; None where there is no such limit."""

    evaluations: float | None = None
    units: float | None = None
    rows: float | None = None
    seconds: float | None = None
    stderr: float | None = None

    def share(self, progress: Progress) -> float:
        """Return how much of the nearest limit is used, 0 to 1."""
        shares = [0.0]
        for limit, used in (
            (self.evaluations, progress.evaluations),
            (self.units, progress.units),
            (self.rows, progress.rows_trained),
            (self.seconds, progress.seconds),
        ):
            if limit:
                shares.append(used / limit)
        if self.stderr:
            known = progress.stderr[np.isfinite(progress.stderr)]
            if len(known) == len(progress.stderr) and known.max() > 0:
                shares.append(float(self.stderr / known.max()) ** 2)
        return min(1.0, max(shares))


class Watch:
    """Listener of a run.

    Parameters
    ----------
    out
        Where progress goes.
    limits
        What ends the run.
    trace, path, run, every_s
        The trace, its file, the digest of the run, and seconds between two writes; without a path
        no trace is kept.
    round_units
        Units of a round.
    """

    def __init__(
        self, out: Output, limits: Limits, *, path: Path | None = None, run: str = "",
        every_s: float = 30.0, round_units: int = 64,
    ) -> None:  # fmt: skip
        self._out, self._limits, self._path, self._run = out, limits, path, run
        self._every, self._round = every_s, round_units
        self.trace = Trace() if path is None else Trace.load(path, run, keep_last=False)
        self._begun: tuple[float, float] | None = None
        self._said = self._shown = self._saved = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show the state, and note it in the trace."""
        now = time.monotonic()
        if self._path is not None and progress.units:
            self.trace.add(-(-progress.units // self._round), progress)
            if now - self._saved >= self._every / 2:
                self.save()
        if now - self._shown < _SHOWN_EVERY_S:
            return
        self._shown = now
        share = self._limits.share(progress)
        if self._begun is None:
            self._begun = (now, share)
        self._out.progress("valuing", share)
        if now - self._said >= _SAID_EVERY_S:
            self._said = now
            self._out.note(self._line(progress, share, now))

    def finish(self, result: ValuationResult) -> None:
        """Note the result as the last state, and write the trace."""
        units = result.extras.get("units")
        if self._path is not None and isinstance(units, int) and units:
            last = Progress(
                units, result.evaluations, result.rows_trained, result.seconds, result.values,
                result.stderr,
            )  # fmt: skip
            self.trace.end(-(-units // self._round), last)
        self.save()

    def save(self) -> None:
        """Write the trace."""
        if self._path is not None and self.trace.rounds:
            self.trace.save(self._path, self._run)
        self._saved = time.monotonic()

    def _line(self, progress: Progress, share: float, now: float) -> str:
        known = progress.stderr[np.isfinite(progress.stderr)]
        error = f", largest error {known.max():.3g}" if len(known) else ""
        began, before = self._begun or (now, share)
        left = ""
        if share > before and now > began:
            seconds = (1 - share) * (now - began) / (share - before)
            left = f", about {duration(seconds)} left"
        return f"{share:.0%}: {progress.evaluations} evaluations{error}{left}"


def duration(seconds: float) -> str:
    """Return a time span for people."""
    if seconds < 90:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
