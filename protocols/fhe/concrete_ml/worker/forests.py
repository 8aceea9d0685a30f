"""Trees, forests and boosted trees, from node arrays whose thresholds are integers.

A frame lists the nodes of all trees one tree after the other: ``starts`` (first node of each tree
and the end), ``left``, ``right`` (within the tree, -1 at a leaf), ``feature``, ``threshold`` (a row
goes left if its integer is at most that), ``value`` (nodes, outputs).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np

from .built import Built  # noqa: TID251
from .frames import Array, Frame, FrameError  # noqa: TID251
from .layers import error, outputs_of  # noqa: TID251

MAX_NODES: Final = 1 << 16
MAX_DEPTH: Final = 24
_LEAF: Final = -1
_NO_PARENT: Final = 2147483647
_MARGIN: Final = 0.5


def forest(request: Frame, fhe: Any) -> Built:  # noqa: ANN401
    """Build a forest that averages its trees; one tree is a forest, too."""
    del fhe
    rows, trees = _rows(request), list(_trees(request))
    outputs, features = trees[0]["value"].shape[1], rows.shape[1]
    ensemble = import_module("sklearn.ensemble")
    single = outputs == 1
    shares = [tree["value"] for tree in trees]
    if not single and any((part < 0).any() or not part.sum(axis=1).all() for part in shares):
        raise FrameError("a leaf of a classifier holds shares of its classes")
    scikit = (
        ensemble.RandomForestRegressor(n_estimators=len(trees))
        if single
        else ensemble.RandomForestClassifier(n_estimators=len(trees))
    )
    scikit.estimators_ = [_tree(tree, features, single=single) for tree in trees]
    _fill(scikit, features, outputs, single=single)
    return _compiled(scikit, rows, request, framework="sklearn")


def boosted(request: Frame, fhe: Any) -> Built:  # noqa: ANN401
    """Build boosted trees: ``output`` says to which sum each tree belongs."""
    del fhe
    rows, trees, output = _rows(request), list(_trees(request)), request.arrays["output"]
    groups = int(request.fields["groups"])
    if output.shape != (len(trees),) or groups < 1 or not np.isin(output, range(groups)).all():
        raise FrameError("each tree belongs to one of the sums")
    boosting = import_module("xgboost")
    regression = request.fields["regression"] is True
    text = _booster(trees, output, groups, rows.shape[1], regression=regression)
    scikit = (
        boosting.XGBRegressor(n_estimators=len(trees) // groups, base_score=_MARGIN)
        if regression
        else boosting.XGBClassifier(n_estimators=len(trees) // groups, base_score=_MARGIN)
    )
    scikit.load_model(bytearray(text))
    if not regression:
        scikit.n_classes_ = max(groups, 2)
        scikit.classes_ = np.arange(max(groups, 2))
    return _compiled(scikit, rows, request, framework="xgboost")


def _compiled(scikit: Any, rows: Array, request: Frame, *, framework: str) -> Built:  # noqa: ANN401
    """Take concrete-ml's steps after the fit of a tree model, and compile."""
    bits = request.fields["leaf_bits"]
    if type(bits) is not int or not 1 <= bits <= 12:
        raise FrameError("leaves have 1 to 12 bits")
    failure = error(request)
    tree_to_numpy = import_module("concrete.ml.sklearn.tree_to_numpy").tree_to_numpy
    inference, quantizers, onnx = tree_to_numpy(
        scikit,
        rows.astype(np.float64),
        use_rounding=True,
        fhe_ensembling=False,
        framework=framework,
        output_n_bits=bits,
    )
    del onnx
    compiler = import_module("concrete.fhe").Compiler(
        lambda inputs: inference(inputs)[0], {"inputs": "encrypted"}
    )
    circuit = compiler.compile(
        [row[None] for row in rows],
        single_precision=False,
        compress_input_ciphertexts=True,
        compress_evaluation_keys=True,
        **failure,
    )
    return Built(
        circuit=circuit,
        clear=lambda integers: inference(integers)[0],
        features=rows.shape[1],
        quantisers=outputs_of(quantizers[0]),
    )


def _rows(request: Frame) -> Array:
    rows = request.arrays["rows"]
    if rows.dtype != np.int64 or rows.ndim != 2 or not rows.size:
        raise FrameError("rows are int64 of shape (n, features)")
    return rows


def _trees(request: Frame) -> Iterator[dict[str, Array]]:
    """Yield the checked node arrays of each tree."""
    names = ("left", "right", "feature", "threshold", "value")
    starts, nodes = request.arrays["starts"], {name: request.arrays[name] for name in names}
    total = len(nodes["value"])
    ints = (starts, *(nodes[name] for name in names[:-1]))
    if any(array.dtype != np.int64 or array.ndim != 1 for array in ints):
        raise FrameError("nodes are int64")
    if any(len(nodes[name]) != total for name in names) or not 0 < total <= MAX_NODES:
        raise FrameError(f"there are 1 to {MAX_NODES} nodes, each with all that it needs")
    if nodes["value"].dtype != np.float64 or not np.isfinite(nodes["value"]).all():
        raise FrameError("values of leaves are finite")
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 3).any():
        raise FrameError("trees start where the one before ends, and have a root and two leaves")
    features = request.arrays["rows"].shape[1]
    for first, end in pairwise(starts.tolist()):
        tree = {name: array[first:end] for name, array in nodes.items()}
        _check_tree(tree, features)
        yield tree


def _check_tree(tree: dict[str, Array], features: int) -> None:
    """Check that the nodes are one binary tree, children after parents, of bounded depth."""
    left, right = tree["left"], tree["right"]
    inner = left != _LEAF
    if ((right != _LEAF) != inner).any():
        raise FrameError("a node has no child or two")
    parents = np.flatnonzero(inner)
    children = np.concatenate([left[inner], right[inner]])
    if (children <= np.concatenate([parents, parents])).any():
        raise FrameError("children come after their parents")
    if not np.array_equal(np.sort(children), np.arange(1, len(left))):
        raise FrameError("every node but the root has one parent")
    if (tree["feature"][inner] < 0).any() or (tree["feature"][inner] >= features).any():
        raise FrameError("a node asks for a feature that is not there")
    if np.abs(tree["threshold"][inner]).max() > 1 << 20:
        raise FrameError("a threshold is out of range")
    depth = np.zeros(len(left), np.int64)
    for parent in parents:
        depth[[left[parent], right[parent]]] = depth[parent] + 1
    if depth.max() > MAX_DEPTH:
        raise FrameError(f"a tree is deeper than {MAX_DEPTH}")


def _tree(tree: dict[str, Array], features: int, *, single: bool) -> Any:  # noqa: ANN401
    """Return scikit-learn's tree with these nodes."""
    module = import_module("sklearn.tree")
    outputs, count = tree["value"].shape[1], len(tree["left"])
    classes = np.array([1 if single else outputs], np.intp)
    native = import_module("sklearn.tree._tree").Tree(features, classes, 1)
    nodes = np.zeros(count, native.__getstate__()["nodes"].dtype)
    inner = tree["left"] != _LEAF
    nodes["left_child"], nodes["right_child"] = tree["left"], tree["right"]
    nodes["feature"] = np.where(inner, tree["feature"], -2)
    nodes["threshold"] = np.where(inner, tree["threshold"] + _MARGIN, -2.0)
    nodes["n_node_samples"], nodes["weighted_n_node_samples"] = 1, 1.0
    native.__setstate__(
        {
            "max_depth": MAX_DEPTH,
            "node_count": count,
            "nodes": nodes,
            "values": np.ascontiguousarray(tree["value"][:, None, :], np.float64),
        }
    )
    scikit = module.DecisionTreeRegressor() if single else module.DecisionTreeClassifier()
    scikit.tree_ = native
    scikit.max_features_ = features
    _fill(scikit, features, outputs, single=single)
    return scikit


def _fill(scikit: Any, features: int, outputs: int, *, single: bool) -> None:  # noqa: ANN401
    scikit.n_features_in_, scikit.n_outputs_ = features, 1
    if not single:
        scikit.classes_, scikit.n_classes_ = np.arange(outputs), outputs


def _booster(
    trees: list[dict[str, Array]], output: Array, groups: int, features: int, *, regression: bool
) -> bytes:
    """Return the trees as XGBoost's JSON, with sums that start at zero."""
    objective = "reg:squarederror" if regression else "binary:logistic"
    several = groups > 1
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {
            "name": "gbtree",
            "model": {
                "gbtree_model_param": {
                    "num_parallel_tree": "1",
                    "num_trees": str(len(trees)),
                    "size_leaf_vector": "0",
                },
                "tree_info": [int(group) for group in output],
                "trees": [_node_lists(tree, n, features) for n, tree in enumerate(trees)],
            },
        },
        "learner_model_param": {
            "base_score": "0.5",
            "num_class": str(groups if several else 0),
            "num_feature": str(features),
        },
        "objective": (
            {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": str(groups)}}
            if several
            else {"name": objective, "reg_loss_param": {"scale_pos_weight": "1"}}
        ),
    }
    return json.dumps({"learner": learner, "version": [1, 6, 2]}).encode("ascii")


def _node_lists(tree: dict[str, Array], number: int, features: int) -> dict[str, Any]:
    left, right, count = tree["left"], tree["right"], len(tree["left"])
    inner = left != _LEAF
    parents = np.full(count, _NO_PARENT)
    for child in (left, right):
        parents[child[inner]] = np.flatnonzero(inner)
    zeros = [0] * count
    return {
        "base_weights": [0.0] * count,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": zeros,
        "id": number,
        "left_children": left.tolist(),
        "loss_changes": [0.0] * count,
        "parents": parents.tolist(),
        "right_children": right.tolist(),
        "split_conditions": np.where(
            inner, tree["threshold"] + _MARGIN, tree["value"][:, 0]
        ).tolist(),
        "split_indices": np.where(inner, tree["feature"], 0).tolist(),
        "split_type": zeros,
        "sum_hessian": [1.0] * count,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(count),
            "size_leaf_vector": "0",
        },
    }
