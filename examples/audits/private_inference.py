"""Audit of private inference: ring product, encoder layers, whole models, fidelity, peers.

Prints every number the design sets a target for, measured here and now::

    python examples/audits/private_inference.py --quick           # a table, below 50 s
    python examples/audits/private_inference.py --json --peers    # everything, sets up the peers

Dealer, server and client are processes of their own; the parties talk over mutual TLS on loopback.
"""

from __future__ import annotations

import sys

from fidelity_bars import fidelity_section
from frame import Options, Report, run
from gemm_bars import gemm_section
from layer_bars import layer_section
from model_bars import bert_section, minilm_section


def audit(report: Report, options: Options) -> None:
    """Measure everything."""
    gemm_section(report, options)
    layer_section(report, options)
    minilm_section(report, options)
    fidelity_section(report, options)
    bert_section(report, options)


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", audit))
