"""Steps in order of need, otherwise in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

__all__ = ["in_order_of_need"]


def in_order_of_need(
    needs: Mapping[str, Set[str]], cycle: Callable[[list[str]], None]
) -> list[str]:
    """Each name after those it needs; `cycle` is told of a ring, whose members are left out."""
    left = {name: {other for other in needed if other in needs} for name, needed in needs.items()}
    ordered: list[str] = []
    while left:
        ready = next((name for name, needed in left.items() if not needed & left.keys()), None)
        if ready is None:
            cycle(_ring(left))
            return ordered
        ordered.append(ready)
        del left[ready]
    return ordered


def _ring(left: Mapping[str, Set[str]]) -> list[str]:
    """One ring of names that need each other, from its first in the file back to itself."""
    path: list[str] = []
    name = next(iter(left))
    while name not in path:
        path.append(name)
        name = next(other for other in left if other in left[name])
    ring = path[path.index(name) :]
    start = min(range(len(ring)), key=lambda i: list(left).index(ring[i]))
    ring = ring[start:] + ring[:start]
    return [*ring, ring[0]]
