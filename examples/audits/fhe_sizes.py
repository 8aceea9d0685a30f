"""Cost against image size, by plans: the same residual network behind frequency and pixels."""

from __future__ import annotations

import numpy as np
from fhe_curves import draw
from frame import Options, Report, reported

from privml.backbones.cnn import Bits, resnet20
from privml.backbones.quant_model import QuantModel
from privml.protocols.fhe import EncryptedClassifier
from privml.protocols.fhe.planned import Machine, Plan
from privml.report import Series
from privml.rng import ScienceSeed

SIZES = (32, 64, 128, 224)
BLOCKS = {"pixel": 1, "dct, block 2": 2, "dct, block 4": 4, "dct, block 8": 8}
SKIPPED = {1: 0, 2: 1, 4: 2, 8: 2}
"""Halvings left out: the last grid is a quarter of the image, with blocks of 8 an eighth."""
ROOM = 1 << 50
"""Memory of the imagined machine: large images are priced, and what they need is reported."""
CHANNELS = 6


def sizes_section(report: Report, options: Options) -> None:
    """Add ``fhe.size.*``: core-seconds of ResNet-20 (48/56/64) predicted by plans."""
    sizes = SIZES[:1] if options.quick else SIZES
    with report.section("cost against image size", *(f"fhe.size.{size}" for size in sizes)):
        found = {size: {name: price(name, size) for name in BLOCKS} for size in sizes}
        for size, plans in found.items():
            ratio = plans["pixel"].core_s.expected / plans["dct, block 2"].core_s.expected
            report.add(
                reported(f"fhe.size.{size}", ratio, unit="x",
                         against="ResNet-20 on pixels over dct with blocks of 2, by plans",
                         detail={name: _row(plan) for name, plan in plans.items()})
            )  # fmt: skip
        series = [
            Series(name, np.array(sizes, np.float64),
                   np.array([found[size][name].core_s.expected for size in sizes]))
            for name in BLOCKS
        ]  # fmt: skip
        draw(options, "size", series, "image side, pixels", "predicted core-seconds",
             logarithmic=True)  # fmt: skip


def price(name: str, size: int) -> Plan:
    """Return the plan of one image; weights are drawn, cost depends on shape and bits alone."""
    block = BLOCKS[name]
    side, form = size // block, "rgb" if block == 1 else "dct"
    shape = (3 if block == 1 else CHANNELS, side, side)
    final = side // 4 if block == 1 else side // (4 >> SKIPPED[block])
    net = resnet20(
        shape, form=form, skip_downsample=SKIPPED[block], final_grid=final, seed=ScienceSeed(1)
    )
    model = QuantModel(net, bits=Bits())
    draw_ = ScienceSeed(2).child(name, size).generator()
    model.calibrate(draw_.standard_normal((2, *shape)))
    machine = Machine("any", 2, ROOM)
    return EncryptedClassifier(model).plan(machine=machine)


def _row(plan: Plan) -> dict[str, object]:
    here = Machine.here()
    return {
        "tables": plan.tables, "core_s": round(plan.core_s.expected),
        "core_s_range": [round(plan.core_s.low), round(plan.core_s.high)],
        "memory_mb": round(plan.memory_mb.expected), "max_bits": plan.max_bits,
        "fits_here": plan.memory_mb.expected < 0.8 * here.memory_bytes / 1e6,
    }  # fmt: skip
