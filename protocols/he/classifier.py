"""A polynomial network behind its front end: plan, compile, and run in three modes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import canonical_json
from privml.errors import MalformedMessage, ParameterError, ProtocolError
from privml.protocols.fhe.entry import Mode
from privml.protocols.fhe.frequency import Frequency, Photo
from privml.protocols.fhe.planned import Machine
from privml.protocols.fhe.prediction import Prediction, parse_mode
from privml.protocols.he.contexts import ClientContext, ClientSpec, ServerContext
from privml.protocols.he.costs import StepCosts, measure
from privml.protocols.he.evaluate import Circuit
from privml.protocols.he.network import PolynomialNetwork
from privml.protocols.he.network_file import load_network, save_network
from privml.protocols.he.plan import NOTICE, CkksPlan, plan
from privml.protocols.he.tenseal_backend import SealEvaluator
from privml.protocols.he.twin import Twin
from privml.rng import ScienceSeed
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

Floats = NDArray[np.float64]

FRONT: Final = "front.json"
NAMES: Final = "names.json"
_MAX_FRONT: Final = 1 << 17


class PolynomialClassifier:
    """One object, three modes, for networks of affine maps and squares.

    Parameters
    ----------
    network
        The network.
    front
        Front end of its inputs; none if it takes arrays.
    names
        Names of the classes.

    Raises
    ------
    ParameterError
        The network was trained behind another front end, or takes another shape.

    Examples
    --------
    >>> import numpy as np
    >>> from privml.protocols.he import Layer, PolynomialNetwork
    >>> layers = Layer("a", np.eye(2), np.ones(2)), Layer("b", np.eye(2), np.zeros(2))
    >>> classifier = PolynomialClassifier(PolynomialNetwork(layers, 4.0, (2,)))
    >>> classifier.plan().images
    2048
    >>> classifier.run(np.array([[0.5, 1.0]]), mode="clear").scores.tolist()
    [[2.25, 4.0]]
    """

    def __init__(
        self,
        network: PolynomialNetwork,
        *,
        front: Frequency | None = None,
        names: Sequence[str] = (),
    ) -> None:
        if names and len(names) != network.classes:
            raise ParameterError(f"{len(names)} names for {network.classes} classes")
        found = "" if front is None else front.digest()
        if network.front and found != network.front:
            raise ParameterError(
                "the network was trained behind another front end; give the very one, with the "
                "statistics of its training data"
            )
        if front is not None and front.shape != network.shape:
            raise ParameterError(
                f"the front end gives shape {front.shape}, the network takes {network.shape}"
            )
        self.network, self.front, self.names = network, front, tuple(names)
        self._plan: CkksPlan | None = None
        self._server: ServerContext | None = None
        self._parties: tuple[ClientContext, SealEvaluator] | None = None

    def plan(
        self, *, costs: StepCosts | None = None, calibrate: bool = False,
        machine: Machine | None = None,
    ) -> CkksPlan:  # fmt: skip
        """Predict cost and error; see :func:`privml.protocols.he.plan.plan`.

        Parameters
        ----------
        costs
            Measured before, by :func:`privml.protocols.he.costs.measure`.
        calibrate
            Measure them now (below a second); needs tenseal.

        Raises
        ------
        FheRefused
            It cannot run; the message names the layer.
        """
        if calibrate and costs is None:
            costs = measure(plan(self.network, machine=machine).parameters)
        return plan(self.network, costs=costs, machine=machine)

    def compile(self, plan: CkksPlan | None = None) -> Self:
        """Prepare the server of a plan; a new one if none is given. Cost: below a second.

        Raises
        ------
        ParameterError
            The plan is another network's.
        UnsupportedError
            tenseal is missing.
        """
        chosen = self.plan() if plan is None else plan
        if chosen.network != self.network.digest():
            raise ParameterError("the plan is of another network; plan again")
        self._plan = chosen
        self._server = ServerContext(self.network, chosen.parameters)
        self._parties = None
        return self

    @property
    def server(self) -> ServerContext:
        """The server's part; call :meth:`compile` first."""
        if self._server is None:
            raise ProtocolError("nothing is compiled yet; call compile(plan) first")
        return self._server

    def prepare(self, images: Sequence[Photo] | NDArray[np.floating]) -> Floats:
        """Return inputs (n, features) of images: files, pixels, or arrays without front end."""
        if self.front is None:
            return self.network.check(np.asarray(images))
        return self.network.check(self.front.batch(list(images)))

    def run(
        self,
        images: Sequence[Photo] | NDArray[np.floating],
        *,
        mode: Mode | str,
        seed: ScienceSeed | None = None,
    ) -> Prediction:
        """Classify images; never falls back from one mode to another.

        Parameters
        ----------
        images
            JPEG files or pixels, (n, ...); arrays (n, *network.shape) without a front end.
        mode
            ``"clear"``: float64. ``"simulate"``: with the noise of the scheme. ``"execute"``:
            ciphertexts; generates keys once.
        seed
            Of the simulated noise.

        Raises
        ------
        ParameterError
            Unknown mode, no image, or images of another shape.
        ProtocolError
            ``execute`` before :meth:`compile`.
        """
        mode = parse_mode(mode)
        x = self.prepare(images)
        if not len(x):
            raise ParameterError("give at least one image")
        if mode is Mode.EXECUTE:
            self._keys()
        chosen = self._plan if self._plan is not None or mode is Mode.CLEAR else self.plan()
        wall, cpu = time.monotonic(), time.process_time()
        scores = self._scores(x, mode, chosen, ScienceSeed(0) if seed is None else seed)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        noisy = None if mode is Mode.CLEAR else chosen
        executed = chosen if mode is Mode.EXECUTE else None
        return Prediction(
            scheme="ckks", mode=mode, scores=scores, names=self.names,
            failure_probability=0.0 if noisy is None else noisy.failure_probability,
            error_bound=0.0 if noisy is None else noisy.error_bound, disagreement=None,
            simulator="CKKS noise model" if mode is Mode.SIMULATE else None,
            seconds=wall, core_s=cpu,
            predicted_core_s=None if executed is None else executed.call_core_s(len(x)),
            program=self.network.digest(), licence=NOTICE,
        )  # fmt: skip

    def save(self, folder: Path | str, *, replace: bool = False) -> Path:
        """Write network, names of classes and front end; the front end is written last."""
        path = save_network(self.network, folder, replace=replace)
        if self.names:
            atomic_write(path / NAMES, canonical_json(list(self.names)), replace=replace)
        if self.front is not None:
            atomic_write(path / FRONT, self.front.to_json(), replace=replace)
        return path

    @classmethod
    def load(cls, folder: Path | str, *, names: Sequence[str] = ()) -> Self:
        """Read what :meth:`save` wrote.

        Raises
        ------
        StorageError, Corrupt, MalformedMessage
            A file is missing, damaged or of another form.
        """
        network = load_network(folder)
        front = None
        if network.front:
            front = Frequency.from_json(read_file(Path(folder) / FRONT, limit=_MAX_FRONT))
        return cls(network, front=front, names=tuple(names) or _names(Path(folder) / NAMES))

    def _scores(self, x: Floats, mode: Mode, chosen: CkksPlan | None, seed: ScienceSeed) -> Floats:
        if mode is Mode.EXECUTE:
            return self._execute(x)
        if mode is Mode.SIMULATE and chosen is not None:
            return self._simulate(x, chosen, seed)
        return self.network.run(x.reshape(len(x), *self.network.shape))

    def _simulate(self, x: Floats, chosen: CkksPlan, seed: ScienceSeed) -> Floats:
        spec = ClientSpec.of(self.network, chosen.parameters)
        circuit = Circuit(self.network.shrunk(spec.divisor), spec.packing)
        twin = Twin(chosen.parameters, seed.child("ckks noise").generator())
        prepared, per = circuit.prepare(twin), spec.packing.images
        rows = []
        for first in range(0, len(x), per):
            part = x[first : first + per]
            slots = circuit.run(twin, twin.encrypt(spec.packing.pack(part)), prepared)
            rows.append(spec.packing.unpack(slots, images=len(part), features=spec.classes))
        return np.concatenate(rows) * spec.divisor

    def _keys(self) -> tuple[ClientContext, SealEvaluator]:
        """Return the client, and its keys as the server has loaded them; drawn once."""
        if self._parties is None:
            client = ClientContext(self.server.spec)
            loaded = self.server.load_keys(client.evaluation_keys())
            self.server.prepare(loaded)
            self._parties = client, loaded
        return self._parties

    def _execute(self, x: Floats) -> Floats:
        client, keys = self._keys()
        answers = [self.server.run(query, keys) for query in client.encrypt(x)]
        return client.decrypt(answers, images=len(x))


def _names(path: Path) -> tuple[str, ...]:
    if not fs.exists(path):
        return ()
    try:
        return msgspec.json.decode(read_file(path, limit=_MAX_FRONT), type=tuple[str, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"{path} holds no names of classes: {error}") from error
