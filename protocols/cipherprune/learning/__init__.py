"""Threshold learning, the one part of the protocols that trains models and loads torch."""

from privml.protocols.cipherprune.learning.data import Rows, TaskData, tokenise
from privml.protocols.cipherprune.learning.evaluate import Evaluation, evaluate
from privml.protocols.cipherprune.learning.finetune import fine_tune, with_classifier
from privml.protocols.cipherprune.learning.learn import Learned, learn_thresholds
from privml.protocols.cipherprune.learning.loop import Progress, Recipe
from privml.protocols.cipherprune.learning.options import Options

__all__ = [
    "Evaluation",
    "Learned",
    "Options",
    "Progress",
    "Recipe",
    "Rows",
    "TaskData",
    "evaluate",
    "fine_tune",
    "learn_thresholds",
    "tokenise",
    "with_classifier",
]
