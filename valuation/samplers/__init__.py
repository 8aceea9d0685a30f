"""Samplers: which coalitions a method looks at, unit by unit."""

from privml.valuation.samplers.base import Outcome, Sampler, Unit
from privml.valuation.samplers.draws import MSR
from privml.valuation.samplers.walks import TMC, Antithetic, Permutation, Stratified

__all__ = ["MSR", "TMC", "Antithetic", "Outcome", "Permutation", "Sampler", "Stratified", "Unit"]
