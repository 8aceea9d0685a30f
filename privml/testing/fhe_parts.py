"""Small parts of encrypted-image programs without concrete-python: real parameters, fake code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import numpy as np

from privml.backbones.digests import sha256
from privml.protocols.fhe.bundle import ServerPart
from privml.protocols.fhe.entry import Answer, Mode
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.manifest import Input, Layer, Manifest, Output, Sizes, Toolkit, common
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.parties import LIBRARY_FILE, PROGRAM_FILE, Artefact
from privml.protocols.fhe.program_info import ProgramInfo
from privml.rng import ScienceSeed
from privml.testing.tiny_graphs import vector_graph

TABLES = 3
BITS = 2


def parameters() -> bytes:
    """Return the description of a program over ``vector_graph(3, 2)``; its keys have 232 bytes."""
    side: dict[str, Any] = {
        "rawInfo": {"shape": {"dimensions": [1, TABLES, 3]}},
        "typeInfo": {
            "lweCiphertext": {
                "abstractShape": {"dimensions": [1, TABLES]}, "compression": "seed",
                "encryption": {"keyId": 0, "variance": 1e-10, "lweDimension": 8},
            }
        },
    }  # fmt: skip
    bootstrap = {
        "inputId": 0, "outputId": 0, "compression": "seed",
        "params": {
            "levelCount": 1, "glweDimension": 1, "polynomialSize": 8, "variance": 1e-10,
            "inputLweDimension": 1,
        },
    }  # fmt: skip
    key_switch = {
        "inputId": 0, "outputId": 0, "compression": "seed",
        "params": {"levelCount": 1, "inputLweDimension": 13, "outputLweDimension": 8,
                   "variance": 1e-10},
    }  # fmt: skip
    tree = {
        "keyset": {
            "lweSecretKeys": [{"params": {"lweDimension": 8}}], "lweBootstrapKeys": [bootstrap],
            "lweKeyswitchKeys": [key_switch], "packingKeyswitchKeys": [],
        },
        "circuits": [{"name": "circuit", "inputs": [side], "outputs": [side]}],
    }  # fmt: skip
    return json.dumps(tree).encode()


def fake_part(library: bytes = b"no library", graph: Graph | None = None) -> ServerPart:
    """Return a program whose code cannot run; everything else is as in a real one."""
    graph = vector_graph(TABLES, BITS) if graph is None else graph
    raw = parameters()
    info, artefact = ProgramInfo(raw), Artefact({PROGRAM_FILE: raw, LIBRARY_FILE: library})
    node = graph.input
    tree = {
        **common(), "program": artefact.digest, "parameters": sha256(raw),
        "graph": graph.digest(), "toolkit": Toolkit.here(),
        "input": Input(node.shape, node.low, node.high, None, None),
        "output": Output(0, (1.0,) * TABLES, (0.0,) * TABLES, ("a", "b", "c")),
        "layers": (Layer("t", TABLES, TABLES, BITS, BITS, None, exact=False),),
        "sizes": Sizes(info.key_bytes, info.query_bytes, info.answer_bytes, 4 * info.key_bytes),
        "p_error": 2.0**-30, "global_failure": 3 * 2.0**-30, "contract": "exact",
        "disagreement": None,
    }  # fmt: skip
    manifest = msgspec.convert(msgspec.to_builtins(tree), Manifest)
    return ServerPart(manifest, artefact, graph.to_bytes(), None)


class FakeClient:
    """Stands for :class:`privml.protocols.fhe.parties.Client`; its ciphertexts hide nothing."""

    def __init__(self, part: ServerPart, seed: int = 0) -> None:
        self._info = part.client.spec.info
        self.keys = ScienceSeed(seed).generator().bytes(self._info.key_bytes + 10)
        self.encrypted = 0

    def encrypt(self, x: Ints) -> list[bytes]:
        """Return the images as they are, filled up to the length of a query."""
        self.encrypted += len(x)
        size = self._info.query_bytes + 10
        return [one.astype("<i8").tobytes().ljust(size, b".") for one in x]

    def decrypt(self, answers: list[bytes]) -> Answer:
        """Return what :func:`fake_answer` put into the answers."""
        rows = [np.frombuffer(answer[: 8 * TABLES], "<i8") for answer in answers]
        integers = np.stack(rows).astype(np.int64)
        return Answer(scores=integers.astype(np.float64), integers=integers, mode=Mode.EXECUTE)


def fake_answer(query: bytes, keys: bytes) -> bytes:
    """Return the image of a fake query, and what shows which keys it was computed by."""
    return query[: 8 * TABLES] + hashlib.sha256(keys).digest() + b"." * 50
