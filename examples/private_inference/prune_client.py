"""The client of a pruned model: one text, and what its run opened; no thresholds, no torch."""

import sys

from privml.protocols import mpc

text, server_fingerprint, peer = [*sys.argv[1:], "127.0.0.1:7711"][:3]
plan = mpc.Plan.load("plan.json")
mine = mpc.Identity.load("keys", "client")
link = {"peer": peer, "identity": mine, "pin": server_fingerprint, "cache": "cache"}
with mpc.connect(plan=plan, pool="client.pool", **link) as run:
    logits = run.execute(run.public.tokenizer.encode([text]))[0]  # only the client learns them
bill = run.bill
print(plan.config.labels[logits.argmax()])
print(f"opened: {bill.length} tokens, then {[kept for kept, _ in bill.counts]}")
print(f"cost: {bill.flights} flights, {(bill.sent + bill.received) / 1e6:.1f} MB both ways")
print("the plan had priced it:", plan.cost_of(bill.length, bill.counts))
