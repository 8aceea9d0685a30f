"""Audit of encrypted image networks: frequency, lowering, reliability, image size, CKKS, CIFAR-10.

Prints every number the design sets a target for, measured here and now, in core-seconds::

    python examples/audits/fhe_inference.py --quick            # a table, below 50 s
    python examples/audits/fhe_inference.py --json --peers --plots plots
    python examples/audits/fhe_inference.py --cifar RUN --data cifar10-jpeg.zip --resnet20 FILE
    python examples/audits/fhe_inference.py --only paper,ckks  # some sections

Needs the extras ``fhe``, ``he`` and ``report`` (``make setup-fhe``), and for the paper-style row
the environment of concrete-ml (built by ``--peers``); what is missing is reported as absent. RUN is
a folder that ``examples/cifar10_dct.py`` wrote, FILE what ``fhe_resnet20.py`` wrote. A table that
holds ``dct`` without its controls is refused.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from functools import partial

from frame import Options, Report, run

SECTIONS = ("digits", "paper", "curves", "plan", "sizes", "resnet20", "ckks", "cifar")
PATHS = {
    "cifar": "folder written by examples/cifar10_dct.py",
    "data": "zip of CIFAR-10 JPEG files: accuracy is measured again and not only read",
    "resnet20": "file written by examples/audits/fhe_resnet20.py",
    "plots": "existing folder for curves, as PNG and JSON",
    "kept": "existing folder for the runs of the paper-style pipeline, so that a stop costs little",
}


def audit(report: Report, options: Options, *, only: Sequence[str] = SECTIONS) -> None:
    """Measure everything, or the sections of `only`; ``curves`` needs the networks of ``digits``.

    Libraries of arithmetic are first loaded here, when the number of their threads is set.
    """
    from fhe_cifar import cifar_section
    from fhe_ckks import ckks_section
    from fhe_controls import controls_section
    from fhe_curves import curves_section
    from fhe_paper import paper_section
    from fhe_plan import plan_section
    from fhe_resnet20 import resnet20_section
    from fhe_sizes import sizes_section

    from privml.protocols.fhe.toolkit import LicenceNotice

    plain = {
        "paper": paper_section, "plan": plan_section, "sizes": sizes_section,
        "resnet20": resnet20_section, "ckks": ckks_section, "cifar": cifar_section,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LicenceNotice)  # the notice is in docs/fhe.md
        if {"digits", "curves"} & set(only):
            networks = controls_section(report, options)
            if "curves" in only and networks:
                curves_section(report, options, networks)
        for name in SECTIONS:
            if name in only and name in plain:
                plain[name](report, options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default=",".join(SECTIONS))
    known, rest = parser.parse_known_args(argv)
    only = known.only.split(",")
    wrong = sorted(set(only) - set(SECTIONS))
    if wrong:
        parser.error(f"--only: there is no {', '.join(wrong)}; known are {', '.join(SECTIONS)}")
    return run(__doc__ or "", partial(audit, only=only), rest, paths=PATHS)


if __name__ == "__main__":
    sys.exit(main())
