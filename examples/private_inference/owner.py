"""The model's owner: look at the price, write the plan, and have the correlations dealt."""

import sys

from privml.backbones import load_encoder
from privml.protocols import mpc

encoder = load_encoder(sys.argv[1] if len(sys.argv) > 1 else "minilm-l6")
model = mpc.PrivateModel(encoder, mpc.Spec(ring=64, f=16))
plan = model.plan(n=16, rows=1, source="dealer")  # shapes only: nothing is computed or sent
print(plan.cost, plan.claim, *plan.leakage, sep="\n")
plan.save("plan.json")  # public; server, client and dealer need it

# In earnest a third party does this, from plan.json alone, and sends each pool to its party.
mpc.deal(plan, runs=2, server="server.pool", client="client.pool")
