"""Cosines of models' changes from their base, estimated from a small part of the weights; loads no torch."""

from __future__ import annotations

import math
import operator
from itertools import combinations

from emberge.merging.merge_plan import MergePlan
from emberge.merging.planning.compare_layers import Read, is_plain, numbers_of, runs
from emberge.model_folder import layer_number

__all__ = ["changes_alike"]

# Models whose pairs are looked at; more tell nothing new about the others.
_MOST = 8


def changes_alike(plan: MergePlan, read: Read) -> tuple[float, ...]:
    """Return the estimated cosine of the changes of each pair of models; nothing without a base.

    Only matrices in the text trunk's layers are looked at, where files have them as they are. `read` returns
    bytes of a file from a place on, so many. Pairs with a model that did not change are left out.
    """
    count = min(_MOST, len(plan.request.inputs))
    squares = [0.0] * count
    products = dict.fromkeys(combinations(range(count), 2), 0.0)
    for tensor in plan.tensors if count > 1 else ():
        specs = [tensor.base, *tensor.sources[:count]]
        if layer_number(tensor.name) is None or len(tensor.out.shape) < 2:
            continue
        if tensor.action != "merge" or not all(map(is_plain, specs)):
            continue
        known = [spec for spec in specs if spec is not None]
        for start, size in runs(min(spec.elements for spec in known)):
            base, *models = (numbers_of(spec, start, size, read) for spec in known)
            changes = [list(map(operator.sub, one, base)) for one in models]
            for i, change in enumerate(changes):
                squares[i] += sum(map(operator.mul, change, change))
            for i, j in products:
                products[i, j] += sum(map(operator.mul, changes[i], changes[j]))
    return tuple(
        product / math.sqrt(squares[i] * squares[j])
        for (i, j), product in products.items()
        if squares[i] > 0 and squares[j] > 0
    )
