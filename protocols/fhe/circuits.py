"""TFHE executor: an integer graph compiled by concrete-python, run in three modes.

One :class:`Circuit` runs the same images in clear integers (numpy), in the compiler's error model,
or under encryption. The encrypted mode goes through the same :class:`Client` and :class:`Server`
that two machines would use, over bytes.

After compilation everything that the compiler decided by looking at sample inputs is compared with
the interval bounds of the graph; a narrower integer, a missing compression or another number of
bootstraps is an error and not a silently wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from privml.errors import FheRefused, MalformedMessage, ParameterError, internal
from privml.protocols.fhe import reference, toolkit, trace
from privml.protocols.fhe.entry import Answer, ImageSpec, Mode
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.nodes import Ints, Table
from privml.protocols.fhe.parties import (
    LIBRARY_FILE,
    PROGRAM_FILE,
    Artefact,
    Client,
    ClientSpec,
    EvaluationKeys,
    Server,
)
from privml.protocols.fhe.program_info import ProgramInfo
from privml.protocols.fhe.signals import own_signals
from privml.protocols.fhe.work import Bootstrap
from privml.storage import fs


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a graph.

    Attributes
    ----------
    bootstraps
        Programmable bootstraps per table node and image: one a table, and with exact rounding up to
        one more for each dropped bit.
    table_bits
        Bits that each table node's tables see.
    accumulator_bits
        Bits of the integers in front of each table node's rounding.
    p_error
        Probability of a fault per table that the chosen parameters have.
    key_bytes, query_bytes, answer_bytes
        What is sent, without envelopes.
    loaded_key_bytes
        Evaluation keys in the server's memory.
    complexity
        The compiler's cost estimate, in its own unit.
    work
        Bootstraps by kind; predicts the time of a run.
    """

    bootstraps: Mapping[str, int]
    table_bits: Mapping[str, int]
    accumulator_bits: Mapping[str, int]
    p_error: float
    key_bytes: int
    query_bytes: int
    answer_bytes: int
    loaded_key_bytes: int
    complexity: float
    work: tuple[Bootstrap, ...] = ()

    @property
    def total_bootstraps(self) -> int:
        """Bootstraps of one image."""
        return sum(self.bootstraps.values())


class Circuit:
    """A compiled integer graph; close it, or use ``with``.

    Parameters
    ----------
    graph
        Graph to compile.
    p_error
        Probability that one table is off, in (0, 1). Give this or ``global_p_error``.
    global_p_error
        Probability that any table of an image is off.

    Raises
    ------
    ParameterError
        Not exactly one probability is given, or it is out of range.
    BitsExceeded
        An accumulator is wider than 16 bits.
    FheRefused
        The compiler finds no secure parameters for the graph.
    UnsupportedError
        concrete-python is missing.
    """

    def __init__(
        self, graph: Graph, *, p_error: float | None = None, global_p_error: float | None = None
    ) -> None:
        errors = _error_budget(p_error, global_p_error)
        self.graph = graph
        self.required = trace.required_bits(graph)
        self.fhe = toolkit.frontend()
        self._folders: list[Path] = []
        self._compiled = self._compile(errors)
        self._remember(self._compiled.server)
        try:
            self._check_widths()
            self.report = self._report()
        except BaseException:
            self.close()
            raise

    def run(self, x: Ints, *, mode: Mode | str) -> Answer:
        """Classify images.

        Parameters
        ----------
        x
            Images, shape (n, *graph.input.shape), integers within the input's bounds, any memory
            layout.
        mode
            "clear", "simulate" or "execute". The first execution generates keys.

        Raises
        ------
        ParameterError
            Wrong mode, type, shape or range.
        """
        if mode not in list(Mode):
            raise ParameterError(f"mode must be one of {', '.join(Mode)}, not {mode!r}")
        mode = Mode(mode)
        images = self.image.check(x)
        if mode is Mode.EXECUTE:
            return self._execute(images)
        integers = (
            reference.run(self.graph, images) if mode is Mode.CLEAR else self._simulate(images)
        )
        return Answer(scores=self.graph.scores(integers), integers=integers, mode=mode)

    @property
    def image(self) -> ImageSpec:
        """What the circuit takes."""
        node = self.graph.input
        return ImageSpec(node.shape, node.low, node.high)

    @cached_property
    def spec(self) -> ClientSpec:
        """What a client needs; no weights."""
        output = self.graph.output
        low = self.graph.edges()[output.x].low
        return ClientSpec(self._info, self.image, low, output.scale, output.offset)

    @cached_property
    def artefact(self) -> Artefact:
        """What the server needs: native code."""
        folder = self._folder(self._compiled.server)
        names = (PROGRAM_FILE, LIBRARY_FILE)
        return Artefact({name: (folder / name).read_bytes() for name in names})

    def client(self) -> Client:
        """Return a new client without keys."""
        return Client(self.spec)

    def server(self) -> Server:
        """Return a new server."""
        return Server(self.artefact, digest=self.artefact.digest)

    @property
    def has_keys(self) -> bool:
        """Whether :meth:`run` has keys to execute with."""
        return "_parties" in self.__dict__

    def make_keys(self) -> None:
        """Generate the keys of :meth:`run` now and not at the first execution. Cost: seconds."""
        _ = self._parties

    def close(self) -> None:
        """Remove what the compiler left in the temporary folder, and the keys of this object."""
        if self.has_keys:
            self._parties[1].close()
            del self.__dict__["_parties"]
        for folder in self._folders:
            if fs.exists(folder):
                fs.remove_tree(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _parties(self) -> tuple[Client, Server, EvaluationKeys]:
        client, server = self.client(), self.server()
        return client, server, server.load_keys(client.keygen())

    def _execute(self, images: Ints) -> Answer:
        client, server, keys = self._parties
        return client.decrypt([server.run(query, keys) for query in client.encrypt(images)])

    def _simulate(self, images: Ints) -> Ints:
        output = self.graph.edges()[self.graph.output.name]
        result = np.empty((len(images), output.size), np.int64)
        for row, one in zip(result, images - self.image.low, strict=True):
            with own_signals():
                row[:] = np.asarray(self._compiled.simulate(one[None])).reshape(-1)
        self._remember(self._compiled._module.simulation_runtime.val.server)
        return result + output.low

    @cached_property
    def _info(self) -> ProgramInfo:
        try:
            return ProgramInfo(self.artefact.files[PROGRAM_FILE])
        except MalformedMessage as error:
            raise FheRefused(
                "concrete-python splits the integers of this graph into residues, which is slow "
                "and not supported; round to fewer bits, or allow a larger p_error"
            ) from error

    def _compile(self, errors: dict[str, float]) -> Any:  # noqa: ANN401
        settings = self.fhe.Configuration(
            **errors,
            compress_evaluation_keys=True,
            compress_input_ciphertexts=True,
            dump_artifacts_on_unexpected_failures=False,
            fhe_execution=False,  # enabled below, so that errors of both steps are caught once
            fhe_simulation=False,
        )
        compiler = self.fhe.Compiler(trace.function(self.graph, self.fhe), {"x": "encrypted"})
        try:
            with np.errstate():  # the compiler changes numpy's error handling
                circuit = compiler.compile(trace.samples(self.graph), settings)
                circuit.enable_fhe_execution()
        except RuntimeError as error:
            raise FheRefused(
                f"concrete-python cannot compile the graph: {error}; lower the bits of the widest "
                "table, or allow a larger p_error"
            ) from error
        return circuit

    def _folder(self, server: Any) -> Path:  # noqa: ANN401
        return Path(server._library.get_output_dir_path())  # it has no public name

    def _remember(self, server: Any) -> None:  # noqa: ANN401
        """Note the folder of a compiled program, which the library leaves behind."""
        folder = self._folder(server)
        if folder not in self._folders:
            self._folders.append(folder)

    def _check_widths(self) -> None:
        """Compare what the compiler measured with the interval bounds; see the module's text."""
        for tagged, needed in self.required.items():
            name = trace.node_of(self.graph, tagged).name
            found = [bits for bits, _ in self._widths(tagged)]
            internal(
                bool(found) and min(found) >= needed,
                f"{name}: the compiler gave {found} bits where {needed} are needed",
            )

    def _widths(self, tagged: str) -> list[tuple[int, int]]:
        """Return (assigned bits, bits after rounding) of a table's accumulator, or of the output.

        Of a table these are the nodes that add the shift and that round, of the output all.
        """
        nodes = self._compiled._function.graph.query_nodes(ordered=True)
        tagged_nodes = [n for n in nodes if n.tag == tagged and n.output.is_encrypted]
        if isinstance(trace.node_of(self.graph, tagged), Table):
            before = [n.properties.get("name") for n in tagged_nodes].index(trace.TABLE)
            tagged_nodes = tagged_nodes[:before]
        return [
            (
                n.output.dtype.bit_width,
                n.properties.get("resulting_bit_width", n.properties["original_bit_width"]),
            )
            for n in tagged_nodes
        ]

    def _report(self) -> Compiled:
        server = self._compiled.server
        internal(self._info.compressed, "the compiler did not compress keys and inputs")
        self._info.require_secure()
        counts = self._compiled.programmable_bootstrap_count_per_tag
        bootstraps, bits, accumulators = {}, {}, {}
        edges, tables = self.graph.edges(), self.graph.tables()
        for position, node in enumerate(self.graph.nodes):
            if not isinstance(node, Table):
                continue
            tagged = trace.tag(position)
            dropped = trace.shifted(edges[node.x], self.graph.lookups[node.name]).dropped
            count, least = int(counts.get(tagged, 0)), tables[node.name]
            most = least * (1 + dropped) if node.exact else least
            internal(
                least <= count <= most,
                f"{node.name}: {count} bootstraps, planned are {least} to {most}",
            )
            bootstraps[node.name] = count
            accumulators[node.name], bits[node.name] = self._widths(tagged)[-1]
        return Compiled(
            bootstraps=bootstraps,
            table_bits=bits,
            accumulator_bits=accumulators,
            p_error=float(self._compiled.p_error),
            key_bytes=self._info.key_bytes,
            query_bytes=self._info.query_bytes,
            answer_bytes=self._info.answer_bytes,
            loaded_key_bytes=int(server.size_of_bootstrap_keys + server.size_of_keyswitch_keys),
            complexity=float(self._compiled.complexity),
            work=self._work(),
        )

    def _work(self) -> tuple[Bootstrap, ...]:
        counts = self._compiled.programmable_bootstrap_count_per_parameter
        return tuple(
            Bootstrap(
                count=int(count),
                lwe=int(key.input_lwe_dimension()),
                level=int(key.level()),
                glwe=int(key.glwe_dimension()),
                polynomial=int(key.polynomial_size()),
                switch=self._info.switch_entries(int(key.input_lwe_dimension())),
            )
            for key, count in counts.items()
        )


def _error_budget(p_error: float | None, global_p_error: float | None) -> dict[str, float]:
    given = {"p_error": p_error, "global_p_error": global_p_error}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) != 1:
        raise ParameterError("give exactly one of p_error and global_p_error; there is no default")
    for name, value in chosen.items():
        if not 2.0**-60 <= value < 1:
            raise ParameterError(f"{name} must lie in [2^-60, 1), not {value!r}")
    return chosen
