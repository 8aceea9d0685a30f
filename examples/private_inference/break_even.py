"""From which length does pruning pay? Flights and bytes of one text, by the plans alone."""

import sys

from privml.backbones import load_encoder, random_encoder
from privml.protocols import mpc
from privml.protocols.cipherprune import PruneSpec

SHAPE = {"layers": 6, "hidden": 384, "heads": 12, "ffn": 1536, "labels": ("no", "yes")}
LENGTHS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
model = load_encoder(sys.argv[1]) if sys.argv[1:] else random_encoder(**SHAPE)
prune = PruneSpec(reveal="bucket", grid=(1, 2, 4, *LENGTHS), reduce=False)
lengths = [n for n in LENGTHS if n <= model.config.max_positions]
whole, private = mpc.PrivateModel(model), mpc.PrivateModel(model, mpc.Spec(prune=prune))
plan = private.plan(n=lengths[-1])


def price(cost: mpc.Cost) -> str:
    """Return flights, and bytes of both directions."""
    return f"{cost.flights} flights, {sum(cost.sent) / 1e6:.1f} MB"


def pruned(n: int, keep: float) -> str:
    """Price a text of n tokens of which each layer keeps a share, in buckets."""
    left = [n * keep ** (layer + 1) for layer in range(model.config.layers - 1)]
    kept = [prune.bucket(max(1, round(tokens)), limit=n) for tokens in left]
    return price(plan.cost_of(n, [(k, k) for k in kept]))


print("| tokens | without pruning | each layer keeps 3/4 | each layer keeps 1/2 |")
print("|---|---|---|---|")
for n in lengths:
    row = (str(n), price(whole.plan(n=n).cost), pruned(n, 0.75), pruned(n, 0.5))
    print(f"| {' | '.join(row)} |")
