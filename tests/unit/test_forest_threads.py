"""Readers beside a writer: every answer is that of one version that was current meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from privml.errors import UnknownIdError
from privml.unlearning import DynForestClassifier


def data() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:400], y[:400]


def test_answers_of_readers_belong_to_a_current_version() -> None:
    X, y = data()
    probes, gone = X[::20], list(range(0, 240, 2))
    serial = DynForestClassifier(10, random_state=0).fit(X, y)
    model = clone(serial).fit(X, y)
    answers = {1: serial.predict_proba(probes).tobytes()}
    for i in gone:
        serial.unlearn([i])
        answers[serial.version_] = serial.predict_proba(probes).tobytes()
    wrong: list[tuple[int, int]] = []
    reads = 0
    stop = threading.Event()

    def read() -> None:
        nonlocal reads
        while not stop.is_set():
            first = model.version_
            seen = model.predict_proba(probes).tobytes()
            last = min(model.version_ + 1, max(answers))
            reads += 1
            if not any(answers[v] == seen for v in range(first, last + 1)):
                wrong.append((first, last))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for i in gone:
            model.unlearn([i])
            assert answers[model.version_] == model.predict_proba(probes).tobytes()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert reads > 0
    assert model.state_digest() == serial.state_digest()


def test_frequencies_add_up_while_classes_come_and_go() -> None:
    X, y = data()
    nines = np.flatnonzero(y == 9)
    model = DynForestClassifier(10, random_state=0).fit(X, y)
    problems: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            total = model.predict_proba(X[:50]).sum(axis=1)
            if not np.allclose(total, 1.0):
                problems.append(total)
            model.predict(X[:5])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(20):
            model.unlearn(nines)
            model.learn(X[nines], np.where(turn % 2, 9, 11).repeat(len(nines)), ids=nines)
    finally:
        stop.set()
        reader.join()
    assert problems == []


def test_two_writers_delete_each_row_once() -> None:
    X, y = data()
    model = DynForestClassifier(10, random_state=0).fit(X, y)
    done: list[int] = []
    refused: list[int] = []

    def write() -> None:
        for i in range(100):
            try:
                model.unlearn([i])
                done.append(i)
            except UnknownIdError:
                refused.append(i)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(done) == list(range(100))
    assert len(refused) == 100
    assert model.version_ == 101
    fresh = clone(model).fit(X[100:], y[100:], ids=range(100, 400))
    assert model.state_digest() == fresh.state_digest()


@pytest.mark.parametrize("jobs", [1, 2])
def test_readers_see_resolving_and_purging_as_nothing(jobs: int) -> None:
    X, y = data()
    model = DynForestClassifier(10, random_state=0, n_jobs=jobs).fit(X, y)
    model.unlearn(range(100))
    want = clone(model).fit(X[100:], y[100:], ids=range(100, 400)).predict_proba(X)
    different: list[bool] = []

    def read() -> None:
        different.extend(not (model.predict_proba(X) == want).all() for _ in range(10))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    model.resolve(1e-4)
    model.purge()
    model.state_digest()
    for reader in readers:
        reader.join()
    assert different == [False] * 20
