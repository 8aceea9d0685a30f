"""Valuation beside deletion: values afterwards, cost beforehand, robust values, audits.

Everything computed with a record is derived from it. After a deletion, replace results and
recordings by what :func:`after_delete` returns and remove the old ones.
"""

from privml.valuation.links.audit import Audit, audit_deletion, audit_unlearning, mentions
from privml.valuation.links.cost import ForgettingCost, cost_of_forgetting
from privml.valuation.links.deletion import Deletion, after_delete
from privml.valuation.links.deravda import DeRDaVa
from privml.valuation.links.recording import Recording, record
from privml.valuation.links.survivors import Survivors

__all__ = [
    "Audit",
    "DeRDaVa",
    "Deletion",
    "ForgettingCost",
    "Recording",
    "Survivors",
    "after_delete",
    "audit_deletion",
    "audit_unlearning",
    "cost_of_forgetting",
    "mentions",
    "record",
]
