"""A scikit-learn model under encryption: one object, three modes, a plan, files for two sides.

The model is fitted by the user's own scikit-learn, its numbers cross to the builder process as
arrays, and concrete-ml compiles them there. Linear models and nets are quantised after the fit.
Trees are fitted on quantised features (:meth:`EncryptedEstimator.fit`), so that the encrypted model
makes the same splits, or converted (:meth:`EncryptedEstimator.convert`), where each threshold moves
to the nearest boundary of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError, ProtocolError, internal
from privml.protocols.fhe.concrete_ml import bundles, kinds
from privml.protocols.fhe.concrete_ml.builds import (
    Grid,
    Options,
    layers_request,
    make_head,
    trees_request,
)
from privml.protocols.fhe.concrete_ml.bundles import Bundle
from privml.protocols.fhe.concrete_ml.environment import Environment
from privml.protocols.fhe.concrete_ml.heads import REGRESSION, Head, checked_rows
from privml.protocols.fhe.concrete_ml.kinds import Family, Fitted, Layers
from privml.protocols.fhe.concrete_ml.parties import EstimatorClient, EstimatorServer
from privml.protocols.fhe.concrete_ml.planning import make_plan
from privml.protocols.fhe.concrete_ml.process import Limits, Role, Worker
from privml.protocols.fhe.entry import Mode
from privml.protocols.fhe.nodes import Floats
from privml.protocols.fhe.planned import Machine, Plan
from privml.protocols.fhe.program_info import ProgramInfo

CALIBRATION_ROWS: Final = 500
"""Rows of X that the compiler sees."""

DEFAULT_BITS: Final[Mapping[Family, int]] = {
    Family.LINEAR: 8,
    Family.MLP: 6,
    Family.FOREST: 6,
    Family.BOOSTED: 6,
}
SAFE_P_ERROR: Final = 2.0**-40
"""Failure probability of one table; concrete-ml's own default."""

_TREES: Final = frozenset({Family.FOREST, Family.BOOSTED})


class EncryptedEstimator:
    """A scikit-learn (or XGBoost) model that predicts on encrypted rows.

    Parameters
    ----------
    model
        An estimator; fitted for :meth:`convert`, fitted or not for :meth:`fit`. It is not changed.
    bits
        Bits of quantised features (and weights): 2 to 8. By default 8 for linear models, else 6.
    leaf_bits
        Bits of the values in the leaves of trees, 1 to 12.
    rounding
        Bits to which the accumulators of a net are rounded, 2 to 8.
    p_error
        Failure probability of one table. Nets run several times faster at 0.01.
    environment, limits
        Where the worker processes run and what they may take.

    Attributes
    ----------
    model_
        The fitted estimator behind. After :meth:`fit`, trees expect quantised rows.
    fidelity_
        On the calibration rows: share of predictions equal to the model's or, for a regression,
        one minus the relative squared difference.

    Raises
    ------
    UnsupportedError
        The model has no encrypted form, or the environment is missing.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401
        *,
        bits: int | None = None,
        leaf_bits: int = 8,
        rounding: int = 6,
        p_error: float = SAFE_P_ERROR,
        environment: Environment | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.family = kinds.family(model)
        self.bits = DEFAULT_BITS[self.family] if bits is None else bits
        self.leaf_bits, self.rounding, self.p_error = leaf_bits, rounding, p_error
        _check("bits", self.bits, 2, 8)
        _check("leaf_bits", leaf_bits, 1, 12)
        _check("rounding", rounding, 2, 8)
        if not 0 < p_error < 1:
            raise ParameterError(f"p_error lies between 0 and 1, not {p_error!r}")
        self.model = model
        self._environment, self._limits = environment, limits
        self._builder: Worker | None = None
        self._built: _Built | None = None
        self._parties: tuple[EstimatorClient, EstimatorServer] | None = None

    def __repr__(self) -> str:
        state = "not fitted" if self._built is None else f"{self.bits} bits"
        return f"EncryptedEstimator({type(self.model).__name__}, {state})"

    def fit(self, X: object, y: object) -> Self:
        """Fit a copy of the model and compile it.

        Parameters
        ----------
        X
            Rows (n, features) of finite numbers.
        y
            Labels or values, as the model takes them.

        Raises
        ------
        ParameterError
            X is no table of finite numbers.
        UnsupportedError
            concrete-ml cannot compile the model.
        """
        from sklearn.base import clone

        rows = checked_rows(X)
        model = clone(self.model)
        self._reset()
        if self.family not in _TREES:
            self.model_ = model.fit(rows, y)
            return self._compile(rows, rows)
        grid = self._grid(rows)
        integers = grid.quantise(rows)
        places = integers.astype(np.float64)
        self.model_ = model.fit(places, y)
        return self._compile(rows, places, grid=grid)

    def convert(self, X: object) -> Self:
        """Compile the model as it was fitted.

        Parameters
        ----------
        X
            Rows like those it was fitted on (n, features); they set ranges.

        Raises
        ------
        ParameterError
            X is no table of finite numbers, or has another number of features.
        UnsupportedError
            The model is not fitted, or concrete-ml cannot compile it.
        """
        rows = checked_rows(X)
        self._reset()
        self.model_ = self.model
        return self._compile(rows, rows)

    def plan(self, machine: Machine | None = None) -> Plan:
        """Return what one row will cost, from the compiled program.

        Raises
        ------
        MemoryExceeded
            The keys would not fit into memory.
        """
        built = self._present()
        return make_plan(
            built.counts,
            ProgramInfo(built.bundle.files[bundles.PARAMETERS]),
            name=type(self.model).__name__,
            digest=built.bundle.manifest.digest,
            rounded=self.family is Family.MLP,
            machine=machine or Machine.here(),
            warnings=self._warnings(),
        )

    def scores(self, X: object, *, mode: Mode | str = Mode.CLEAR) -> Floats:
        """Return the scores of rows (n, features), float64 (n, outputs).

        Parameters
        ----------
        X
            Rows.
        mode
            ``"clear"`` evaluates the quantised model; ``"simulate"`` adds the library's model of
            faults; ``"execute"`` encrypts in a client process, runs in a server process, decrypts.

        Raises
        ------
        ParameterError
            Wrong rows or mode.
        """
        built = self._present()
        rows = built.head.quantise(X)
        try:
            wanted = Mode(mode)
        except ValueError:
            raise ParameterError(
                f"a mode is 'clear', 'simulate' or 'execute', not {mode!r}"
            ) from None
        if wanted is Mode.EXECUTE:
            client, server = self._running()
            return client.scores([server.run(query) for query in client.encrypt(X)])
        verb = "clear" if wanted is Mode.CLEAR else "simulate"
        if not len(rows):
            return np.empty((0, len(built.head.offset)))
        return built.head.scores(self._call(verb, arrays={"rows": rows})["rows"])

    def predict(self, X: object, *, mode: Mode | str = Mode.CLEAR) -> NDArray[Any]:
        """Return labels, or values of a regression; see :meth:`scores` for the modes."""
        return self._present().head.predict(self.scores(X, mode=mode))

    def predict_proba(self, X: object, *, mode: Mode | str = Mode.CLEAR) -> Floats:
        """Return the probability of each class, float64 (n, classes).

        Raises
        ------
        UnsupportedError
            The model has none.
        """
        return self._present().head.probabilities(self.scores(X, mode=mode))

    @property
    def bundle(self) -> Bundle:
        """The compiled model: the files of both sides, and the manifest that binds them."""
        return self._present().bundle

    def save(self, folder: Path | str) -> str:
        """Write ``client`` and ``server`` below ``folder``; return the program's digest.

        Keep the digest where the server cannot be made to change it, and give it to
        :meth:`EstimatorServer.load`.
        """
        self.bundle.save(Path(folder))
        return self.bundle.manifest.digest

    def close(self) -> None:
        """End all processes; the object can be fitted again."""
        self._reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _reset(self) -> None:
        parties, self._parties = self._parties, None
        for party in parties or ():
            party.close()
        builder, self._builder = self._builder, None
        if builder is not None:
            builder.close()
        self._built = None

    def _call(
        self,
        verb: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> Mapping[str, NDArray[Any]]:
        return self._worker().call(verb, fields, arrays).arrays

    def _worker(self) -> Worker:
        if self._builder is None:
            self._builder = Worker(Role.BUILDER, environment=self._environment, limits=self._limits)
        return self._builder

    def _present(self) -> _Built:
        if self._built is None:
            raise ProtocolError("there is no compiled model yet; call fit(X, y) or convert(X)")
        return self._built

    def _running(self) -> tuple[EstimatorClient, EstimatorServer]:
        """Return a client and a server that has its evaluation keys; they stay for later calls."""
        if self._parties is None:
            bundle = self.bundle
            client = EstimatorClient(bundle, environment=self._environment, limits=self._limits)
            try:
                server = EstimatorServer(
                    bundle,
                    digest=bundle.manifest.digest,
                    environment=self._environment,
                    limits=self._limits,
                )
            except BaseException:
                client.close()
                raise
            self._parties = client, server
            server.use_keys(client.keygen())
        return self._parties

    def _grid(self, rows: Floats) -> Grid:
        return Grid.from_worker(self._call("quantise", {"bits": self.bits}, {"rows": rows}))

    def _compile(self, rows: Floats, seen: Floats, *, grid: Grid | None = None) -> Self:
        """Send the fitted model and keep what comes back.

        ``rows`` are as the user gives them, ``seen`` as the fitted model takes them; they differ
        where trees were fitted on the ``grid``.
        """
        fitted = kinds.read(self.model_, seen)
        few = np.unique(np.linspace(0, len(rows) - 1, CALIBRATION_ROWS).astype(int))
        options = Options(self.family, self.bits, self.leaf_bits, self.rounding, self.p_error)
        if isinstance(fitted.content, Layers):
            request = layers_request(fitted.content, rows[few], options)
        else:
            ensemble = fitted.content
            if grid is None:
                grid = self._grid(rows)
                ensemble = grid.moved(ensemble)
            regression = not fitted.classes
            request = trees_request(ensemble, rows[few], grid, options, regression=regression)
        answer = self._worker().call("build", request.fields, request.arrays)
        head = make_head(fitted, request.columns, answer.arrays)
        self._built = _Built(head, answer.fields["counts"], self._export(head))
        self.fidelity_ = self._fidelity(rows[few], seen[few], fitted)
        return self

    def _export(self, head: Head) -> Bundle:
        found = self._call("export")
        files = {
            bundles.HEAD: head.to_json(),
            bundles.PARAMETERS: found["info"].tobytes(),
            **{name: found[name].tobytes() for name in bundles.SERVER_FILES},
        }
        return Bundle.make(
            files,
            family=self.family.value,
            p_error=self.p_error,
            versions=self._worker().versions,
        )

    def _fidelity(self, rows: Floats, seen: Floats, fitted: Fitted) -> float:
        head = self._present().head
        own, there = fitted.content.scores(seen), self.scores(rows)
        internal(own.shape == there.shape, "the worker's model has the model's outputs")
        if head.link in REGRESSION:
            spread = float(((own - own.mean(axis=0)) ** 2).sum())
            return 1.0 - float(((own - there) ** 2).sum()) / spread if spread else 1.0
        return float((head.indices(own) == head.indices(there)).mean())

    def _warnings(self) -> tuple[str, ...]:
        found = []
        if self.family in _TREES:
            found.append("an answer holds one value for each tree, so the client learns these")
        if self.family is Family.MLP:
            found.append("rounding is approximate: compare 'simulate' with 'clear' on your rows")
        if self.fidelity_ < 0.99:
            found.append(
                f"the quantised model agrees with the model to {self.fidelity_:.3f} on the "
                "calibration rows; use more bits"
            )
        return tuple(found)


class _Built:
    """A compiled model."""

    def __init__(self, head: Head, counts: Mapping[str, Any], bundle: Bundle) -> None:
        self.head, self.counts, self.bundle = head, counts, bundle


def _check(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ParameterError(f"{name} is an integer from {low} to {high}, not {value!r}")
