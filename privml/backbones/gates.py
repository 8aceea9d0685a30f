"""Learned choice of input channels: gates trained with a penalty, then frozen.

Each input channel is multiplied by a gate that is open with a learned probability. In training it
is a relaxed binary number (the concrete distribution of Maddison et al. and Jang et al., 2017)
drawn anew for every batch, so that a channel which the loss misses when it is closed stays open; a
penalty on the expected number of open gates closes the others. Afterwards the probabilities are
scores: a front end keeps the best channels (``Frequency.select``), and a network of its own is
trained on them from the start. Scores come from training data, and so does the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from privml.backbones.cnn import Cnn
from privml.backbones.cnn_data import Source
from privml.backbones.cnn_training import Progress, Recipe
from privml.errors import ParameterError
from privml.rng import ScienceSeed

_TEMPERATURE = 2.0 / 3.0
_START = 1.0  # logit of a gate before training: open with probability 0.73
_EDGE = 1e-6


@dataclass(frozen=True, eq=False)
class Gates:
    """What the gates learned.

    Attributes
    ----------
    scores
        (channels,) logit of the probability that a gate is open; larger is more important.
    loss
        Mean loss of the last epoch, without the penalty.
    """

    scores: NDArray[np.float64]
    loss: float

    @property
    def open(self) -> NDArray[np.float64]:
        """Probabilities that the gates are open, (channels,)."""
        result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-self.scores))
        return result

    def best(self, keep: int) -> tuple[int, ...]:
        """Return the ``keep`` most important channels, increasing; of equals the first."""
        if not 1 <= keep <= len(self.scores):
            raise ParameterError(f"keep = {keep} must lie in [1, {len(self.scores)}]")
        order = np.argsort(-self.scores, kind="stable")[:keep]
        return tuple(sorted(int(channel) for channel in order))


def learn_gates(
    net: Cnn, train: Source, *, seed: ScienceSeed, recipe: Recipe | None = None,
    penalty: float = 0.02, progress: Progress | None = None,
) -> Gates:  # fmt: skip
    """Train a network and gates on its input channels; the network is spent afterwards.

    Parameters
    ----------
    net
        Small network over all channels, trained here in floating point.
    train
        Inputs behind the front end with all channels.
    seed
        Of the order of samples and of the gates.
    recipe
        Hyper-parameters; ten epochs if not given.
    penalty
        Loss per gate that is expected to be open.
    progress
        Told about every step; may raise to stop.

    Raises
    ------
    ParameterError
        The loss is no longer finite, or a label is no class.
    """
    chosen = Recipe(epochs=10, rate=0.05, batch=64) if recipe is None else recipe
    if int(train.labels.max()) >= net.spec.classes:
        raise ParameterError(f"label {int(train.labels.max())} is none of the network's classes")
    run = _Run(net, train, chosen, penalty, seed)
    return run.go(progress)


class _Run:
    """One call of :func:`learn_gates`."""

    def __init__(
        self, net: Cnn, train: Source, recipe: Recipe, penalty: float, seed: ScienceSeed
    ) -> None:
        self.net, self.train, self.recipe, self.penalty = net, train, recipe, penalty
        self.seed = seed
        self.logits = nn.Parameter(torch.full((net.spec.shape[0],), _START))
        weights = [p for n, p in net.named_parameters() if not n.endswith("log_scale")]
        self.optimiser = torch.optim.SGD(weights, lr=recipe.rate, momentum=0.9, nesterov=True)
        self.choice = torch.optim.Adam([self.logits], lr=0.05)

    def go(self, progress: Progress | None) -> Gates:
        count, batch = len(self.train.labels), self.recipe.batch
        per_epoch = max(count // batch, 1)
        total, loss = self.recipe.epochs * per_epoch, 0.0
        for at in range(total):
            epoch, step = divmod(at, per_epoch)
            if step == 0:
                order = self.seed.child("gates", "order", epoch).generator().permutation(count)
                loss = 0.0
            if progress is not None:
                progress("gates", at / total)
            which = order[step * batch : (step + 1) * batch]
            loss += self._step(which, at, total) / per_epoch
        self.net.eval()
        scores = self.logits.detach().double().numpy().copy()
        return Gates(scores, loss)

    def _step(self, which: NDArray[np.int64], at: int, total: int) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(at / total)
        draw = self.seed.child("gates", "step", at)
        x = torch.from_numpy(self.train.batch(which, rng=draw.child("augment").generator()))
        gates = self._draw(draw.child("gate"))
        self.net.train()
        scores = self.net(x * gates.view(1, -1, 1, 1))
        labels = torch.from_numpy(self.train.labels[which])
        loss = F.cross_entropy(scores, labels, label_smoothing=self.recipe.smoothing)
        if not bool(loss.isfinite()):
            raise ParameterError("the loss of the gates is not finite; lower the rate")
        self.optimiser.zero_grad()
        self.choice.zero_grad()
        (loss + self.penalty * torch.sigmoid(self.logits).sum()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimiser.step()
        self.choice.step()
        return loss.item()

    def _draw(self, seed: ScienceSeed) -> Tensor:
        """Return one relaxed binary gate per channel."""
        uniform = seed.generator().random(len(self.logits)).clip(_EDGE, 1.0 - _EDGE)
        noise = torch.from_numpy((np.log(uniform) - np.log1p(-uniform)).astype(np.float32))
        return torch.sigmoid((self.logits + noise) / _TEMPERATURE)
