"""A quantised network behind its front end: plan, compile, and run in three modes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json
from privml.backbones.quant_steps import InputStep, Step
from privml.errors import ParameterError, ProtocolError
from privml.protocols.fhe import reference
from privml.protocols.fhe.binding import bind, described
from privml.protocols.fhe.building import Frontend
from privml.protocols.fhe.calibration import Calibration
from privml.protocols.fhe.entry import Answer, ImageSpec, Mode
from privml.protocols.fhe.faults import Fault
from privml.protocols.fhe.frequency import Frequency, Photo
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.inputs import quantise
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.lower import lower
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.plan import check_memory
from privml.protocols.fhe.plan import plan as make_plan
from privml.protocols.fhe.planned import Contract, Machine, Plan, Rounding
from privml.protocols.fhe.prediction import Prediction, parse_mode
from privml.protocols.fhe.refined import Comparison, refined
from privml.protocols.fhe.reliability import Disagreement, disagreement
from privml.rng import ScienceSeed

if TYPE_CHECKING:
    from privml.backbones.cnn import Bits
    from privml.backbones.convert import Module
    from privml.protocols.fhe.circuits import Circuit

Photos: TypeAlias = Sequence[Photo] | NDArray[np.generic]
"""JPEG files and pixel arrays; without a front end, real inputs of the network in one array."""

SEEDS = tuple(range(10))
"""Runs per image of a measured disagreement."""


class Quantised(Protocol):
    """What a classifier asks of a model, such as ``privml.backbones.quant_model.QuantModel``."""

    @property
    def front(self) -> Mapping[str, Json]:
        """Description of its front end."""
        ...

    def steps(self) -> tuple[Step, ...]:
        """Return what its quantised pass computes."""
        ...


class EncryptedClassifier:
    """One object, three modes, for quantised networks under TFHE; close it, or use ``with``.

    Parameters
    ----------
    model
        Trained or calibrated model. Front end and names of classes come from its description.
    front
        The same front end once more, if it is at hand; another one is refused.
    names
        Names of the classes; the model's own if not given.

    Raises
    ------
    ParameterError
        Model and front end do not belong together.
    UnsupportedError, FheRefused
        The model has no integer graph; the message names the layer.
    """

    def __init__(
        self, model: Quantised, *, front: Frequency | None = None, names: Sequence[str] = ()
    ) -> None:
        own, labels = described(model.front)
        if own is not None and front is not None and own.digest() != front.digest():
            raise ParameterError(
                "the model was trained behind another front end; leave front= out to use its own"
            )
        start = model.steps()[0]
        if not isinstance(start, InputStep):
            raise ParameterError("the model does not start with its input")
        self.front = own if own is not None else front
        if self.front is not None and self.front.shape != start.shape:
            raise ParameterError(
                f"the front end gives shape {self.front.shape}, the model takes {start.shape}"
            )
        self.scale = float(start.scale)
        self.graph = lower(model)
        self.names = tuple(names) or labels
        classes = len(self.graph.output.scale)
        if self.names and len(self.names) != classes:
            raise ParameterError(f"{len(self.names)} names for {classes} classes")
        self._graphs = {self.graph.digest(): self.graph}
        self._plan: Plan | None = None
        self._circuit: Circuit | None = None

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read a model that :func:`privml.protocols.fhe.quant.save_model` wrote; loads torch.

        Raises
        ------
        StorageError, Corrupt, MalformedMessage
            A file is missing, damaged or of another form.
        """
        from privml.protocols.fhe.quant import load_model  # loads torch

        return cls(load_model(folder))

    @classmethod
    def from_torch(
        cls, module: Module, images: Photos, *,
        front: Frequency | None = None, bits: Bits | None = None, names: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """Return the classifier of a trained torch network, quantised without more training.

        Below 5 bits train the quantised network instead (:mod:`privml.protocols.fhe.quant`).

        Parameters
        ----------
        module
            Any module that :func:`privml.backbones.convert.from_module` takes.
        images
            A few hundred training images that set the scales: as for :meth:`prepare`.
        front
            Fitted front end that the network was trained behind.

        Raises
        ------
        UnsupportedLayer
            Layers that have no encrypted form: every one by name, with a replacement.
        """
        from privml.backbones.convert import from_module  # loads torch
        from privml.backbones.quant_model import QuantModel

        x = np.asarray(images, np.float32) if front is None else front.batch(list(images))
        if x.ndim != 4:
            raise ParameterError(f"images of shape (n, C, H, W) are needed, not {x.shape}")
        net = from_module(module, x.shape[1:], bits=bits)
        model = QuantModel(net) if front is None else bind(net, front, names=names)
        model.calibrate(x)
        return cls(model, names=names)

    def plan(
        self, *, rounding: Rounding | None = None, p_error: float = 1e-2,
        calibration: Calibration | None = None, machine: Machine | None = None,
        contract: Contract | None = None, evidence: Disagreement | None = None,
    ) -> Plan:  # fmt: skip
        """Predict one encrypted image; see :func:`privml.protocols.fhe.plan.plan`.

        Parameters
        ----------
        calibration
            Costs measured on this machine, from :func:`privml.protocols.fhe.measuring.measure`.
        machine
            Another machine to plan for.
        evidence
            From :meth:`measure`, with the same rounding and ``p_error``; runs on ciphertexts with
            approximate results are refused without.

        Raises
        ------
        FheRefused
            It cannot run; the message names the layer, the limit and what to change.
        ClaimTooWeak
            Contract ``exact`` was asked for and does not hold.
        """
        machine = Machine.here(calibration) if machine is None else machine
        graph = self._rounded(rounding)
        return make_plan(
            graph, p_error=p_error, machine=machine, contract=contract, evidence=evidence
        )

    def measure(
        self, images: Photos, *, rounding: Rounding | None = None,
        p_error: float = 1e-2, seeds: Sequence[int] = SEEDS,
    ) -> Disagreement:  # fmt: skip
        """Measure how often faults change the class, by the numpy fault model.

        Parameters
        ----------
        images
            At least 300 that were not trained on, or zero disagreements prove little.
        """
        graph = self._rounded(rounding)
        return disagreement(graph, self.prepare(images), p_error=p_error, seeds=seeds)

    def compile(self, plan: Plan) -> Self:
        """Compile the graph of a plan; afterwards :attr:`compiled_plan` holds the refined plan.

        Raises
        ------
        ParameterError
            The plan is of another model.
        ClaimTooWeak
            The plan claims the contract ``exact``, which does not hold.
        FheRefused
            The compiler finds no secure parameters, or counts differ from the plan.
        UnsupportedError
            concrete-python is missing.
        """
        from privml.protocols.fhe.circuits import Circuit  # its compiler is optional

        graph = self._graphs.get(plan.graph)
        if graph is None:
            raise ParameterError("the plan is not one of this object's; call plan() again")
        again = make_plan(
            graph,
            p_error=plan.p_error,
            machine=plan.machine,
            contract=plan.contract,
            evidence=plan.disagreement,
        )  # a plan that was changed by hand is refused like one that was never made
        self.close()
        self._circuit = Circuit(graph, p_error=again.p_error)
        self._plan = refined(again, self._circuit.report)
        return self

    @property
    def compiled_plan(self) -> Plan:
        """The plan with the compiler's own counts and sizes; call :meth:`compile` first."""
        if self._plan is None:
            raise ProtocolError("nothing is compiled yet; call compile(plan) first")
        return self._plan

    @property
    def circuit(self) -> Circuit:
        """The compiled circuit, with its client and server; call :meth:`compile` first."""
        if self._circuit is None:
            raise ProtocolError("nothing is compiled yet; call compile(plan) first")
        return self._circuit

    @property
    def frontend(self) -> Frontend | None:
        """What bundles need of the front end: specification, and one unit's value."""
        return None if self.front is None else Frontend(front=self.front, scale=self.scale)

    def prepare(self, images: Photos) -> Ints:
        """Return the integers (n, *shape) that are encrypted: C-contiguous and in range.

        Parameters
        ----------
        images
            JPEG files as bytes or pixel arrays behind the front end; without one, real inputs of
            the network, (n, C, H, W).

        Raises
        ------
        ParameterError
            No image, or another shape.
        MalformedMessage, UnsupportedError
            A file cannot be read.
        """
        node = self.graph.input
        if self.front is None:
            x: NDArray[np.float64] = np.asarray(images, np.float64)
        else:
            x = self.front.batch(list(images)).astype(np.float64)
        if x.shape[1:] != node.shape or not len(x) or not np.isfinite(x).all():
            raise ParameterError(
                f"give at least one image of finite numbers of shape {node.shape}, not {x.shape}"
            )
        whole = quantise(x, scale=self.scale, low=node.low, high=node.high)
        return ImageSpec(node.shape, node.low, node.high).check(whole)

    def run(self, images: Photos, *, mode: Mode | str, seed: int = 0) -> Prediction:
        """Classify images; one mode never stands in for another.

        Parameters
        ----------
        images
            As for :meth:`prepare`.
        mode
            ``"clear"``: exact integers, needs nothing. ``"simulate"``: with faults, by
            concrete-python once compiled, else by the numpy model of the default plan.
            ``"execute"``: ciphertexts; keys are generated at the first call.
        seed
            Of the numpy fault model.

        Raises
        ------
        ParameterError
            Unknown mode, or images that do not fit.
        ProtocolError
            ``execute`` before :meth:`compile`.
        ClaimTooWeak
            ``execute`` of approximate results without measured disagreement.
        MemoryExceeded
            ``execute`` on a machine with less memory than it was planned for.
        """
        mode = parse_mode(mode)
        whole = self.prepare(images)
        if mode is Mode.EXECUTE:
            self._begin_execution()
        chosen = self._plan if self._plan is not None or mode is Mode.CLEAR else self.plan()
        wall, cpu = time.monotonic(), time.process_time()
        answer, simulator = self._answer(whole, mode, chosen, seed)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        return Prediction(
            scheme="tfhe", mode=mode, scores=answer.scores, names=self.names,
            failure_probability=(
                0.0 if chosen is None or mode is Mode.CLEAR else chosen.global_failure
            ),
            error_bound=None, disagreement=None if chosen is None else chosen.disagreement,
            simulator=simulator,
            seconds=wall, core_s=cpu,
            predicted_core_s=(
                chosen.core_s * len(whole)
                if chosen is not None and mode is Mode.EXECUTE
                else None
            ),
            program=self.graph.digest() if chosen is None else chosen.graph, licence=NOTICE,
        )  # fmt: skip

    def compare(self, images: Photos, *, planned: Plan) -> Comparison:
        """Execute images one by one and compare the cost with a plan and its refinement.

        Parameters
        ----------
        planned
            The plan that was compiled, as :meth:`plan` returned it.
        """
        whole, circuit = self.prepare(images), self.circuit
        self._begin_execution()
        circuit.run(whole[:1], mode=Mode.EXECUTE)  # keys are expanded in the first run
        times = []
        for one in whole:
            start = time.process_time()
            circuit.run(one[None], mode=Mode.EXECUTE)
            times.append(time.process_time() - start)
        return Comparison(
            planned=planned.core_s, refined=self.compiled_plan.core_s,
            measured_core_s=sorted(times)[len(times) // 2], images=len(times),
            planned_tables=planned.pbs, bootstraps=circuit.report.total_bootstraps,
            planned_keys_mb=planned.keys_mb.expected, keys_mb=circuit.report.key_bytes / 1e6,
            load=os.getloadavg()[0] / planned.machine.cores,
        )  # fmt: skip

    def close(self) -> None:
        """Remove the compiled program and its keys."""
        if self._circuit is not None:
            self._circuit.close()
        self._circuit = self._plan = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin_execution(self) -> None:
        """Refuse what a plan refuses on this machine; make keys, if there are none."""
        chosen = self.compiled_plan
        chosen.require_execute()
        if not self.circuit.has_keys:  # later this process itself holds the memory
            check_memory(chosen, Machine.here())
        self.circuit.make_keys()

    def _rounded(self, rounding: Rounding | None) -> Graph:
        """Return the graph with a rounding, and remember it for :meth:`compile`."""
        graph = self.graph
        if rounding is not None:
            graph = graph.with_rounding(rounding.bits, exact=rounding.mode == "exact")
        return self._graphs.setdefault(graph.digest(), graph)

    def _answer(
        self, whole: Ints, mode: Mode, chosen: Plan | None, seed: int
    ) -> tuple[Answer, str | None]:
        graph = self.graph if chosen is None else self._graphs[chosen.graph]
        if self._circuit is not None and mode is not Mode.CLEAR:
            simulator = "concrete-python" if mode is Mode.SIMULATE else None
            return self._circuit.run(whole, mode=mode), simulator
        fault = None
        if chosen is not None and mode is Mode.SIMULATE:
            fault = Fault(chosen.p_error, ScienceSeed(seed))
        integers = reference.run(graph, whole, fault=fault)
        answer = Answer(scores=graph.scores(integers), integers=integers, mode=mode)
        return answer, None if fault is None else "numpy fault model"
