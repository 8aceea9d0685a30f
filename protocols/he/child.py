"""Child process that computes under CKKS; started by a launcher, never by hand.

Limits, isolation and orders are those of :mod:`privml.protocols.fhe.child`; here are only the
program and the evaluator. SEAL parses keys and ciphertexts of clients in this process alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privml.protocols.fhe.child import main

if TYPE_CHECKING:
    from privml.protocols.fhe.child import Engine
    from privml.protocols.fhe.pipe import Load
    from privml.protocols.he.contexts import ServerContext
    from privml.protocols.he.tenseal_backend import SealEvaluator


@dataclass(frozen=True)
class _Ckks:
    server: ServerContext

    def load_keys(self, data: bytes) -> SealEvaluator:
        from privml.protocols.he.contexts import EvaluationKeys

        return self.server.load_keys(EvaluationKeys.from_bytes(data))

    def run(self, query: bytes, keys: SealEvaluator) -> bytes:
        return self.server.run(query, keys)


def _load(order: Load, data: bytes) -> Engine:
    from privml.backbones.digests import sha256
    from privml.errors import UntrustedArtifact
    from privml.protocols.fhe.parts import split
    from privml.protocols.he.contexts import ClientSpec, ServerContext
    from privml.protocols.he.network_file import network_of

    if sha256(data) != order.digest:
        raise UntrustedArtifact("the program is not the one that was recorded")
    specification, description, weights = split(data)
    spec = ClientSpec.from_json(specification)
    network = network_of(description, weights, where="the program")
    server = ServerContext(network, spec.parameters)
    if server.spec.to_json() != specification:
        raise UntrustedArtifact("network and specification of the program differ")
    return _Ckks(server)


if __name__ == "__main__":
    main(_load)
