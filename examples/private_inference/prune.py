"""The model's owner: learn what to prune from labelled texts, and plan with it."""

import sys

from privml.backbones import load_encoder
from privml.backbones.saving import save_encoder
from privml.protocols import mpc
from privml.protocols.cipherprune import PruneSpec, TaskData, learn_thresholds

folder, rows, n = [*sys.argv[1:], "128"][:3]
model = load_encoder(folder)  # a fine-tuned classifier
data = TaskData.from_tsv(rows, classes=model.config.labels)  # text, tab, class on each line
learned = learn_thresholds(model, data, budget=0.4)  # keeps 40 % of the tokens on the mean
save_encoder(learned.model, "pruned")
learned.thresholds.save("thresholds")  # the server's secret; not part of the plan
private = mpc.PrivateModel(learned.model, mpc.Spec(prune=PruneSpec(learned.thresholds)))
plan = private.plan(n=int(n))
plan.save("plan.json")
print(learned.report["drop"], plan.cost, *plan.leakage, sep="\n")
