"""Self-test of plans: calibrate, plan, refuse, compile, execute; prints predicted and measured.

    python examples/audits/fhe_plan.py [--images 3] [--out fhe-plan.json]

Needs the extra `fhe`. About half a minute on two quiet cores; exit code 1 if the prediction is off
by more than 25 % although the machine was quiet.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

from frame import Options, Report, absent, at_most, reported

from privml.protocols.fhe import toolkit
from privml.protocols.fhe.selftest import TOLERANCE, self_test
from privml.protocols.fhe.toolkit import LicenceNotice

NAMES = ("fhe.plan.core_s_error", "fhe.plan.bootstraps_error", "fhe.plan.keys_error",
         "fhe.plan.calibration_s")  # fmt: skip


def plan_section(report: Report, options: Options) -> None:
    """Add ``fhe.plan.*``: predictions of a calibrated machine against an encrypted run."""
    with report.section("plans against runs", *NAMES):
        reason = "--quick: calibration and runs take half a minute" if options.quick else None
        reason = toolkit.missing() if reason is None else reason
        targets = ("<= 25 %", "<= 0 tables", "<= 10 %", "")
        if reason is not None:
            report.add(*(absent(name, target, against="the measured run", reason=reason)
                         for name, target in zip(NAMES, targets, strict=True)))  # fmt: skip
            return
        found = self_test(images=5)
        seen = found.comparison
        keys = abs(seen.planned_keys_mb / seen.keys_mb - 1)
        detail = {**seen.to_dict(), "refusal": found.refusal}
        report.add(
            at_most(NAMES[0], 100 * abs(1 - 1 / seen.planned_ratio), 100 * TOLERANCE, unit="%",
                    against="measured core-seconds an image, median of 5", detail=detail),
            at_most(NAMES[1], abs(seen.planned_tables - seen.bootstraps), 0, unit="tables",
                    against="bootstraps that the compiler counts"),
            at_most(NAMES[2], 100 * keys, 10, unit="%", against="evaluation keys as sent"),
            reported(NAMES[3], found.calibration_s, unit="s",
                     against="wall time of the calibration"),
        )  # fmt: skip


def main() -> int:
    """Run the self-test, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LicenceNotice)  # the notice is in the report
        found = self_test(images=options.images)
    print(found)
    text = json.dumps({**found.to_dict(), "plan": found.plan.to_dict()}, indent=1)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if found.good or found.comparison.load > 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
