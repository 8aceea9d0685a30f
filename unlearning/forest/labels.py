"""Class labels: which code the forest uses for which label, and which classes are alive.

The forest counts by code; a code keeps its meaning while rows of its class live. Outside, classes
stand in sorted order, and (unless declared) only those with a living row exist: when the last row
of a class is forgotten its label is forgotten with it and the code is free again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.errors import SchemaError
from privml.unlearning.forest.params import MAX_CLASSES
from privml.unlearning.forest.schema import is_text

Label: TypeAlias = int | float | bool | str
_KINDS: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class LabelTable:
    """Labels by code.

    Attributes
    ----------
    kind
        ``"int"``, ``"float"``, ``"bool"`` or ``"str"``; empty while no label was seen.
    values
        Label of each code, None for a code that is free.
    declared
        The list was fixed by the caller; it neither grows nor shrinks.
    """

    kind: str = ""
    values: tuple[Label | None, ...] = ()
    declared: bool = False

    @classmethod
    def declare(cls, classes: Iterable[Any]) -> LabelTable:
        """Return the fixed table of a public list of classes.

        Raises
        ------
        SchemaError
            Fewer than one class, a repeated one, or labels of different or unknown types.
        """
        if isinstance(classes, Iterator) or not isinstance(classes, Iterable):
            raise SchemaError("classes= must be a list of labels")
        given = np.asarray(list(classes))
        kind, uniques = _unique(given)
        if len(uniques) != len(given) or not uniques:
            raise SchemaError("classes= must list at least one label, each once")
        return cls(kind, tuple(uniques), declared=True)

    @property
    def size(self) -> int:
        """Number of codes, free ones included."""
        return len(self.values)

    @cached_property
    def in_use(self) -> int:
        """Number of classes."""
        return sum(label is not None for label in self.values)

    def encode(self, y: NDArray[Any]) -> tuple[LabelTable, NDArray[np.int64]]:
        """Return the table grown by the labels of ``y``, and the code of each row.

        Raises
        ------
        SchemaError
            A label outside the declared classes, or of another type than before.
        """
        kind, uniques = _unique(y)
        if self.kind and kind != self.kind:
            raise SchemaError(f"labels are {kind}, but those of the model are {self.kind}")
        table = self._grown(kind, uniques)
        code = {label: c for c, label in enumerate(table.values) if label is not None}
        inverse = np.unique(y, return_inverse=True)[1].reshape(-1)
        lookup = np.array([code[label] for label in uniques], dtype=np.int64)
        return table, lookup[inverse]

    def living(self, counts: Sequence[int]) -> LabelTable:
        """Return the table without labels whose class has no row left."""
        if self.declared or all(counts):
            return self
        kept = tuple(v if n else None for v, n in zip(self.values, counts, strict=True))
        return replace(self, values=kept, kind=self.kind if any(counts) else "")

    def contradictions(self, counts: Sequence[int]) -> list[str]:
        """Return how the table disagrees with the number of rows per code; empty if it does not.

        Parameters
        ----------
        counts
            Living rows of each code of the forest, which may know more codes than the table.
        """
        found = []
        rows = [*counts, *[0] * (self.size - len(counts))]
        known = [*self.values, *[None] * (len(rows) - self.size)]
        if any(n and label is None for n, label in zip(rows, known, strict=True)):
            found.append("a class with rows has no label")
        gone = [n == 0 and label is not None for n, label in zip(rows, known, strict=True)]
        if any(gone) and not self.declared:
            found.append(f"{sum(gone)} labels belong to classes without rows")
        labels = [label for label in self.values if label is not None]
        if not all(check_label(self.kind, label) for label in labels):
            found.append("labels are not all of one kind")
        elif len(set(labels)) < len(labels):
            found.append("two classes have one label")
        return found

    def order(self) -> tuple[int, ...]:
        """Return the codes in use, sorted by label."""
        used = [c for c, label in enumerate(self.values) if label is not None]
        return tuple(sorted(used, key=lambda c: self.values[c]))  # type: ignore[arg-type,return-value]

    def classes(self) -> NDArray[Any]:
        """Return the labels in use, sorted; the dtype depends on them alone."""
        return np.array([self.values[c] for c in self.order()])

    def _grown(self, kind: str, uniques: list[Label]) -> LabelTable:
        known = set(self.values)
        new = [label for label in uniques if label not in known]
        if not new:
            return self
        if self.declared:
            raise SchemaError(
                f"{len(new)} labels are not in classes=, for example {new[0]!r}; "
                "declare every class that may ever occur"
            )
        values = list(self.values)
        if values.count(None) + MAX_CLASSES - len(values) < len(new):
            raise SchemaError(
                f"{self.in_use + len(new)} classes, at most {MAX_CLASSES} are possible; "
                "is y a target for DynForestRegressor?"
            )
        for label in new:
            if None in values:
                values[values.index(None)] = label
            else:
                values.append(label)
        return replace(self, kind=kind, values=tuple(values))


def check_label(kind: str, value: object) -> bool:
    """Return whether ``value`` is a label of ``kind``; used when a file is read."""
    return kind in _KINDS and type(value) is _KINDS[kind]


def _unique(y: NDArray[Any]) -> tuple[str, list[Label]]:
    """Return the kind and the sorted distinct labels, as plain Python values."""
    try:
        uniques = np.unique(y).tolist()
    except TypeError as error:
        raise SchemaError("labels of different types cannot be compared") from error
    kinds = {type(v) for v in uniques}
    names = [name for name, kind in _KINDS.items() if kinds == {kind}]
    if not names and uniques:
        raise SchemaError(
            "labels are all int, all float, all bool or all str, not "
            + ", ".join(sorted(kind.__name__ for kind in kinds))
        )
    kind = names[0] if names else ""
    if not all(_representable(kind, label) for label in uniques):
        raise SchemaError(
            "labels are integers of 64 bits, finite numbers, or texts of valid Unicode that do not "
            "end in a NUL; rename the others"
        )
    return kind, uniques


def _representable(kind: str, label: Any) -> bool:  # noqa: ANN401 - an int, float, bool or str
    """Return whether numpy and files give a label back as it is."""
    if kind == "int":
        return -(1 << 63) <= int(label) < 1 << 63
    if kind == "float":
        return isfinite(label)
    return kind != "str" or (is_text(label) and not str(label).endswith("\0"))
