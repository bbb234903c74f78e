"""Hierarchical clusters of datasets: the tree of their distances, and cuts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Linkage = Literal["average", "single", "complete"]
# Of each union, lowest first: the two clusters that meet (below n a leaf, else union number - n), the
# distance at which they do, and how many leaves there are then. It is scipy's linkage matrix.
Tree: TypeAlias = "tuple[tuple[int, int, float, int], ...]"


def grow(distances: Sequence[Sequence[float | None]], linkage: Linkage) -> Tree:
    """Build the tree of a symmetric matrix [n, n] of distances, whose diagonal is ignored."""
    from scipy.cluster import hierarchy

    count = len(distances)
    condensed_distances = [distances[i][j] for i in range(count) for j in range(i + 1, count)]
    unions: Any = hierarchy.linkage(condensed_distances, method=linkage)
    return tuple((int(a), int(b), float(h), int(n)) for a, b, h, n in unions)


def cut_at(tree: Tree, threshold: float) -> list[int]:
    """Return each leaf's cluster, formed by unions at distances up to the threshold."""
    return _cut(tree, threshold, "distance")


def cut_into(tree: Tree, count: int) -> list[int]:
    """Return each leaf's cluster, of at most `count`; unions at equal distances are done together."""
    return _cut(tree, count, "maxclust")


def _cut(tree: Tree, at: float, criterion: str) -> list[int]:
    from scipy.cluster import hierarchy

    return [int(label) for label in hierarchy.fcluster(_make_array(tree), at, criterion=criterion)]


def _make_array(tree: Tree) -> NDArray[np.float64]:
    import numpy as np

    return np.array(tree, dtype=np.float64)


def heights_of(tree: Tree) -> tuple[float, ...]:
    """Return the distance of each union, lowest first."""
    return tuple(height for _, _, height, _ in tree)


def leaves(tree: Tree) -> list[int]:
    """Return the leaves from one end of the tree to the other, so that no two branches cross."""
    count = len(tree) + 1

    def list_leaves(node: int) -> list[int]:
        if node < count:
            return [node]
        first, second, *_ = tree[node - count]
        return [*list_leaves(first), *list_leaves(second)]

    return list_leaves(2 * count - 2)


def number_clusters(
    names: Sequence[str], sizes: Mapping[str, int], labels: Sequence[int]
) -> tuple[tuple[str, ...], ...]:
    """Return the clusters in a fixed order: most data first, equally large ones in alphabetical order.

    The names in each cluster are in alphabetical order.
    """
    members_by_label: dict[int, list[str]] = {}
    for name, label in zip(names, labels, strict=True):
        members_by_label.setdefault(label, []).append(name)
    clusters = [tuple(sorted(members)) for members in members_by_label.values()]
    return tuple(sorted(clusters, key=lambda one: (-sum(sizes[n] for n in one), one)))
