"""The server of a pruned model: deals here for once, then answers one pinned client."""

import sys
from dataclasses import replace

from privml.backbones import load_encoder
from privml.protocols import mpc
from privml.protocols.cipherprune import Thresholds

client_fingerprint, port = [*sys.argv[1:], "7711"][:2]
plan = mpc.Plan.load("plan.json")
secret = Thresholds.load("thresholds")  # the plan has all options of pruning but these
spec = replace(plan.spec, prune=replace(plan.spec.prune, thresholds=secret))
private = mpc.PrivateModel(load_encoder("pruned"), spec)
mpc.deal(plan, runs=1, server="server.pool", client="client.pool")  # in earnest a third party
mine = mpc.Identity.load("keys", "server")
with mpc.Server(
    private, plan, "server.pool", port=int(port), identity=mine, pins=[client_fingerprint]
) as server:
    print("listening on port", server.port, flush=True)
    server.serve(max_runs=1)
