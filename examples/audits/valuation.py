"""Audit of data valuation: cost of a marginal, values against peers, top-m, wrong labels, updates.

Prints every number the design sets a target for, measured here and now::

    python examples/audits/valuation.py --quick                  # a table, below 50 s
    python examples/audits/valuation.py --json --peers           # everything, sets up the peers
    python examples/audits/valuation.py --data DIR               # DIR/tabular and DIR/text

Without ``--data`` tables and texts are looked for in ``PRIVML_DATA`` and in ``shared/data`` beside
the checkout; what is not there is an absent bar. pyDVL and OpenDataVal run in environments of their
own. Costs of marginals are CPU times of one thread on one core, both sides in turn.
"""

from __future__ import annotations

import sys

from frame import Options, Report, run
from threadpoolctl import threadpool_limits
from valuation_data import use_data
from valuation_forest import forest_section
from valuation_knn import knn_section
from valuation_marginals import marginals_section
from valuation_noise import noise_section
from valuation_ranking import ranking_section
from valuation_updates import updates_section

PATHS = {"data": "folder with tabular/adult.csv and text/*.tsv"}
SECTIONS = {
    "marginals": marginals_section,
    "forest": forest_section,
    "knn": knn_section,
    "updates": updates_section,
    "noise": noise_section,
    "topm": ranking_section,
}


def audit(report: Report, options: Options) -> None:
    """Measure everything."""
    use_data(options)
    with threadpool_limits(options.threads):
        for section in SECTIONS.values():
            section(report, options)


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", audit, paths=PATHS))
