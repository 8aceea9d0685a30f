"""Audit of CipherPrune: encrypted token pruning and polynomial reduction, with learned thresholds.

Prints every number the design sets a target for, measured here and now::

    python examples/audits/cipherprune.py --quick      # a table, below 50 s, no whole model runs
    python examples/audits/cipherprune.py --json --sst2 DIR --data dev.tsv --pareto BUDGETS

DIR holds ``thresholds.json`` with its safetensors file, and the model in ``DIR/model`` or in DIR
itself, as ``examples/sst2_cipherprune.py`` writes them; accuracy is also held against
``DIR/fine-tuned`` if that is a model. dev.tsv has a text, a tab and a class per line. BUDGETS has
one such DIR per token budget; the plot lands in it.

Dealer, server and client are processes of their own; the parties talk over mutual TLS on loopback.
Variants run in turn, so that other load on the machine hits all of them.
"""

from __future__ import annotations

import sys

from cipherprune_pareto import pareto_section
from cipherprune_shapes import bert_section, gpt2_section
from cipherprune_speed import speed_section
from cipherprune_sst2 import accuracy_section
from cipherprune_step import step_section
from frame import Options, Report, run

PATHS = {
    "sst2": "folder of a classifier and its learned thresholds",
    "data": "labelled sentences, a text, a tab and a class per line",
    "pareto": "folder with one such folder per token budget; the plot is written into it",
}


def audit(report: Report, options: Options) -> None:
    """Measure everything."""
    step_section(report, options)
    bert_section(report, options)
    gpt2_section(report, options)
    accuracy_section(report, options)
    speed_section(report, options)
    pareto_section(report, options)


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", audit, paths=PATHS))
