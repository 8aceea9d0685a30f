"""The client: holds the text and no weights, and never loads torch."""

import sys

from privml.protocols import mpc

server_fingerprint, peer = [*sys.argv[1:], "127.0.0.1:7711"][:2]
plan = mpc.Plan.load("plan.json")
mine = mpc.Identity.load("keys", "client")
link = {"peer": peer, "identity": mine, "pin": server_fingerprint, "cache": "cache"}
with mpc.connect(plan=plan, pool="client.pool", **link) as run:
    tokens = run.public.tokenizer.encode(["A goal."])
    embedding = run.execute(tokens)  # only the client learns it
print(embedding.shape, run.bill.as_dict())
