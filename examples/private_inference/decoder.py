"""A GPT-2-shaped decoder under pruning: its last hidden state, and what a run would cost."""

import sys

import numpy as np

from privml.backbones import Encoded, random_decoder
from privml.protocols import mpc
from privml.protocols.cipherprune import PruneSpec
from privml.protocols.cipherprune.program import schedule_of

layers, hidden, n = (int(word) for word in [*sys.argv[1:], "4", "128", "32"][:3])
model = random_decoder(  # of one's own: load_encoder("a GPT-2 checkpoint's directory")
    layers=layers, hidden=hidden, heads=hidden // 32, ffn=4 * hidden, vocab=1000, max_positions=n
)  # fmt: skip
kept = [max(1, n >> layer) for layer in range(1, layers)]  # each layer keeps half of its tokens
prune = PruneSpec(reveal="schedule", schedule=schedule_of(kept, 1.0))  # no thresholds, no leak
private = mpc.PrivateModel(model, mpc.Spec(prune=prune))
tokens = Encoded.of(np.arange(n)[None] % 1000)
exact, clear = model(tokens)[0].detach().numpy(), private(tokens)[0]
simulated = private(tokens, mode="simulate")[0]  # what a run between two parties gives
print("largest error of the integers:", abs(simulated - clear).max())
norms = np.linalg.norm(clear) * np.linalg.norm(exact)
print("cosine to the unpruned state:", clear @ exact / norms)
print("without pruning:", mpc.PrivateModel(model).plan(n=n).cost)
print("with pruning:", private.plan(n=n).cost)
