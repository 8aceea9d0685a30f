"""The integer graph: what every executor runs, what a plan counts and what a manifest digests.

A graph is a tuple of nodes (:mod:`privml.protocols.fhe.nodes`) in topological order. It starts
with its one :class:`Input` and ends with its one :class:`Output`; every value in between is read.
Bounds of all values follow from the weights alone (:mod:`privml.protocols.fhe.bounds`), rounding
and integer tables from the bounds (:mod:`privml.protocols.fhe.lookup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from privml.errors import MalformedMessage, ParameterError, UnsupportedError
from privml.protocols.fhe.bounds import MAX_ELEMENTS, Bounds, Edge, propagate
from privml.protocols.fhe.codec import MAX_NODES, decode_nodes, digest_nodes, encode_nodes
from privml.protocols.fhe.lookup import (
    Lookup,
    bit_width,
    build_lookup,
    dropped_bits,
    index_range,
    table_index,
    table_size,
)
from privml.protocols.fhe.nodes import (
    AddScaled,
    Conv,
    Floats,
    Input,
    Ints,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
    sources,
)

__all__ = [
    "AddScaled",
    "Bounds",
    "Conv",
    "Edge",
    "Graph",
    "Input",
    "Linear",
    "Lookup",
    "Node",
    "Output",
    "SumPool",
    "Table",
    "bit_width",
    "dropped_bits",
    "index_range",
    "sources",
    "table_index",
]


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A checked integer graph.

    Parameters
    ----------
    nodes
        At most 4,096, in topological order.

    Raises
    ------
    ParameterError
        Names repeat or point forward, shapes do not fit, a value is never read, or a value could
        leave [-2^40, 2^40]. The message names the node.
    UnsupportedError
        A pooling window does not divide its map.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        _check_order(self.nodes)
        edges, entries = self._edges, 0
        for node in self.nodes:
            if isinstance(node, Table):
                edge = edges[node.x]
                entries += len(node.gain) << table_size(node, edge.low, edge.high)[1]
                if entries > MAX_ELEMENTS:
                    raise ParameterError(f"{node.name}: the tables are too large; set round_to")

    @cached_property
    def bounds(self) -> Mapping[str, Bounds]:
        """Shape and per-channel interval of every value, by node name."""
        known: dict[str, Bounds] = {}
        for node in self.nodes:
            known[node.name] = propagate(node, known)
        return MappingProxyType(known)

    @cached_property
    def _edges(self) -> dict[str, Edge]:
        return {name: bounds.edge() for name, bounds in self.bounds.items()}

    def edges(self) -> dict[str, Edge]:
        """Return shape and interval of every value, by node name, in order."""
        return dict(self._edges)

    def node(self, name: str) -> Node:
        """Return the node of this name.

        Raises
        ------
        ParameterError
            There is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise ParameterError(f"the graph has no node {name!r}")

    @property
    def input(self) -> Input:
        """The input node."""
        first = self.nodes[0]
        if not isinstance(first, Input):
            raise ParameterError("a graph starts with its input")
        return first

    @property
    def output(self) -> Output:
        """The output node."""
        last = self.nodes[-1]
        if not isinstance(last, Output):
            raise ParameterError("a graph ends with its output")
        return last

    @cached_property
    def lookups(self) -> Mapping[str, Lookup]:
        """Integer tables of every table node, by name; built on first use."""
        found = {}
        for node in self.nodes:
            if isinstance(node, Table):
                edge = self._edges[node.x]
                found[node.name] = build_lookup(node, edge.low, edge.high)
        return MappingProxyType(found)

    def tables(self) -> dict[str, int]:
        """Return how many tables each table node evaluates per image."""
        return {n.name: self._edges[n.name].size for n in self.nodes if isinstance(n, Table)}

    @property
    def max_bits(self) -> int:
        """Bits of the widest value."""
        return max(edge.bits for edge in self._edges.values())

    def with_rounding(self, round_to: int | None, *, exact: bool) -> Graph:
        """Return the graph with this rounding in every table."""
        return Graph(
            tuple(
                replace(node, round_to=round_to, exact=exact) if isinstance(node, Table) else node
                for node in self.nodes
            )
        )

    def scores(self, integers: Ints) -> Floats:
        """Return class scores of shape (n, classes) from decrypted integers of that shape."""
        output = self.output
        result: Floats = integers * output.scale + output.offset
        return result

    def digest(self) -> str:
        """Return the SHA-256 of the content in hexadecimal: equal graphs, equal digests."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest_nodes(self.nodes)

    def to_bytes(self) -> bytes:
        """Return the graph as safetensors with canonical JSON inside."""
        return encode_nodes(self.nodes)

    @classmethod
    def from_bytes(cls, data: bytes) -> Graph:
        """Read a graph that came from outside.

        Raises
        ------
        MalformedMessage
            It is not what :meth:`to_bytes` writes, or not a valid graph.
        """
        nodes = decode_nodes(data)
        try:
            return cls(nodes)
        except (ParameterError, UnsupportedError) as error:
            raise MalformedMessage(f"the graph is not valid: {error}") from error

    def __repr__(self) -> str:
        return f"Graph({len(self.nodes)} nodes, {sum(self.tables().values())} tables)"


def _check_order(nodes: tuple[Node, ...]) -> None:
    if not 2 <= len(nodes) <= MAX_NODES:
        raise ParameterError(f"a graph has 2 to {MAX_NODES} nodes, not {len(nodes)}")
    kinds = [type(node) for node in nodes]
    inside = kinds[1:-1]
    if kinds[0] is not Input or kinds[-1] is not Output or Input in inside or Output in inside:
        raise ParameterError("a graph starts with its one input and ends with its one output")
    known: set[str] = set()
    unread: set[str] = set()
    for node in nodes:
        for name in sources(node):
            if name not in known:
                raise ParameterError(f"{node.name} reads {name!r}, which no node before it makes")
            unread.discard(name)
        if node.name in known:
            raise ParameterError(f"two nodes are named {node.name!r}")
        known.add(node.name)
        unread.add(node.name)
    unread.discard(nodes[-1].name)
    if unread:
        raise ParameterError(f"nothing reads {', '.join(sorted(unread))}; remove dead nodes")
