"""Two-party inference over additive secret sharing: one model, three modes.

``PrivateModel`` holds the weights, plans and simulates; ``Server`` serves it; ``connect`` opens the
client's side of one run. The client's modules never load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.protocols.mpc.cache import ClientCache
    from privml.protocols.mpc.claim import SecurityClaim
    from privml.protocols.mpc.correlations.dealer import Dealt, deal
    from privml.protocols.mpc.correlations.pool import Pool, UsedLog
    from privml.protocols.mpc.endpoints import Server, connect
    from privml.protocols.mpc.model import PrivateModel
    from privml.protocols.mpc.plan import Plan
    from privml.protocols.mpc.primitive import Cost
    from privml.protocols.mpc.runtime import Bill, ClientRun, ServerRun
    from privml.protocols.mpc.spec import Spec
    from privml.transport.identity import Identity

_HOMES = {
    "SecurityClaim": "claim",
    "Dealt": "correlations.dealer",
    "deal": "correlations.dealer",
    "Pool": "correlations.pool",
    "UsedLog": "correlations.pool",
    "Server": "endpoints",
    "connect": "endpoints",
    "PrivateModel": "model",
    "Plan": "plan",
    "Cost": "primitive",
    "Bill": "runtime",
    "ClientCache": "cache",
    "ClientRun": "runtime",
    "ServerRun": "runtime",
    "Spec": "spec",
}
_ELSEWHERE = {"Identity": "privml.transport.identity"}

__all__ = [
    "Bill",
    "ClientCache",
    "ClientRun",
    "Cost",
    "Dealt",
    "Identity",
    "Plan",
    "Pool",
    "PrivateModel",
    "SecurityClaim",
    "Server",
    "ServerRun",
    "Spec",
    "UsedLog",
    "connect",
    "deal",
]


def __getattr__(name: str) -> object:
    home = _ELSEWHERE.get(name) or (f"{__name__}.{_HOMES[name]}" if name in _HOMES else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(home), name)
    return found
