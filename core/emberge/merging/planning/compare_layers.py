"""Cosines of models' layers and changes, estimated from few weights; loads no torch, no NumPy."""

from __future__ import annotations

import math
import operator
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path

from emberge.merging.comparing.comparison import LOW_COSINE
from emberge.merging.merge_plan import MergePlan
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import layer_number
from emberge.wording import count_noun

# Numbers read in each of as many places of a matrix: with seven matrices a layer, some 7,000 of each layer,
# whose cosine is within 0.02 of that of all of them.
_RUN, _PLACES = 256, 4
Read = Callable[[Path, int, int], bytes]


def far_layers(plan: MergePlan, read: Read) -> Iterator[str]:
    """Yield a warning for each model that has layers whose cosine with the first model's is below LOW_COSINE.

    Only matrices in the text trunk's layers are looked at, where files have them as they are. `read` returns
    bytes of a file from a place on, so many.
    """
    names = [model.name for model in plan.request.inputs]
    for place in range(1, len(names)):
        cosines = _cosines(plan, place, read)
        low = {layer: cosine for layer, cosine in cosines.items() if cosine < LOW_COSINE}
        if low:
            worst = min(low, key=lambda layer: low[layer])
            yield (
                f"'{names[0]}' and '{names[place]}': the cosine of their weights is below {LOW_COSINE} in "
                f"{len(low)} of {count_noun(len(cosines), 'layer')}, about {low[worst]:.2f} in layer "
                f"{worst}; an average of weights this far apart is rarely of use before it is trained; "
                "`emberge diff` shows all layers"
            )


def _cosines(plan: MergePlan, place: int, read: Read) -> Mapping[int, float]:
    """Return the estimated cosine of each layer of the first model and of the one at `place`."""
    sums: dict[int, list[float]] = {}
    for tensor in plan.tensors:
        layer = layer_number(tensor.name)
        if layer is None or tensor.action != "merge" or len(tensor.out.shape) < 2:
            continue
        first, second = tensor.sources[0], tensor.sources[place]
        if not (is_plain(first) and is_plain(second)):
            continue
        assert first is not None
        assert second is not None
        for start, count in runs(min(first.elements, second.elements)):
            a, b = numbers_of(first, start, count, read), numbers_of(second, start, count, read)
            found = sums.setdefault(layer, [0.0, 0.0, 0.0])
            for i, pair in enumerate(((a, b), (a, a), (b, b))):
                found[i] += sum(map(operator.mul, *pair))
    return {la: ab / math.sqrt(aa * bb) for la, (ab, aa, bb) in sums.items() if aa > 0 and bb > 0}


def is_plain(spec: TensorSpec | None) -> bool:
    """Return whether a file has the tensor as it is, in a dtype that is read here."""
    return type(spec) is TensorSpec and spec.dtype in _READ


def runs(elements: int) -> Iterator[tuple[int, int]]:
    """Yield (first element, number) of what is read of a matrix; all of a small one."""
    if elements <= _RUN * _PLACES:
        yield 0, elements
        return
    for i in range(_PLACES):
        yield (elements - _RUN) * i // (_PLACES - 1), _RUN


def numbers_of(spec: TensorSpec, start: int, count: int, read: Read) -> array[float]:
    """Read so many of a tensor's elements, from one on."""
    data = read(spec.file, spec.offset + start * spec.itemsize, count * spec.itemsize)
    return _READ[spec.dtype](data)


def _bfloat16(data: bytes) -> array[float]:
    """Return bfloat16 numbers, which are the upper halves of float32's."""
    whole = bytearray(2 * len(data))
    whole[2::4], whole[3::4] = data[0::2], data[1::2]
    return array("f", bytes(whole))


_READ: Mapping[str, Callable[[bytes], array[float]]] = {
    "bfloat16": _bfloat16,
    "float16": lambda data: array("f", struct.unpack(f"<{len(data) // 2}e", data)),
    "float32": lambda data: array("f", data),
    "float64": lambda data: array("d", data),
}


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
