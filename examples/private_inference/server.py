"""The server: holds the weights and answers one pinned client once."""

import sys

from privml.backbones import load_encoder
from privml.protocols import mpc

client_fingerprint, *rest = sys.argv[1:]
model, port = rest or ("minilm-l6", "7711")
plan = mpc.Plan.load("plan.json")
private = mpc.PrivateModel(load_encoder(model), plan.spec)
mine = mpc.Identity.load("keys", "server")
with mpc.Server(
    private, plan, "server.pool", port=int(port), identity=mine, pins=[client_fingerprint]
) as server:
    print("listening on port", server.port, flush=True)
    server.serve(max_runs=1)
