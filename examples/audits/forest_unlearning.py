"""Audit of exact unlearning in random forests: equality, accuracy, speed, peers, scale.

Prints every number the design sets a target for, measured here and now::

    python examples/audits/forest_unlearning.py --quick           # a table, below 50 s
    python examples/audits/forest_unlearning.py --json --peers    # everything, sets up the peers
    python examples/audits/forest_unlearning.py --dynfrs PATH     # against a DynFrs binary of yours

How a DynFrs binary is called is written in ``forest_dynfrs.py``. Without one, reference
measurements from another machine stand in its place, marked as such and without a verdict.
"""

from __future__ import annotations

import sys

from forest_accuracy import accuracy_section
from forest_bars import speed_section
from forest_equality import equality_section
from forest_forgetting import forgetting_section
from forest_peers import peers_section
from forest_readers import readers_section
from forest_scale import scale_section
from frame import Options, Report, run

PROGRAMS = {"dynfrs": "a DynFrs binary, called as forest_dynfrs.py says"}


def audit(report: Report, options: Options) -> None:
    """Measure everything."""
    ours = speed_section(report, options)
    peers_section(report, options, ours)
    equality_section(report, options)
    forgetting_section(report, options)
    accuracy_section(report, options)
    readers_section(report, options)
    scale_section(report, options)


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", audit, programs=PROGRAMS))
