"""Guard against YAML whose aliases mean more values than anybody writes.

PyYAML keeps what an alias repeats as one shared node, so a text of a few lines may mean billions of
values, and a walk through them would not end. Here each node is visited once.
"""

from __future__ import annotations

import yaml

__all__ = ["MOST_REPEATED", "alias_problem"]

# Values that aliases may repeat in one document. Training options under one anchor in fifty steps are a
# thousand; a check of as many as this takes seconds.
MOST_REPEATED = 50_000


def alias_problem(root: yaml.Node | None) -> tuple[int, str] | None:
    """Return line and message for a document that repeats too much, None for any other.

    `<<` counts like every other use of an alias. The line is that of the list or mapping in which the limit
    is passed. An anchor that contains itself counts once and is left to the reader of the nodes.

    Raises:
        RecursionError: for a document that is nested too deeply.
    """
    try:
        if root is not None:
            _Counting().size(root, root)
    except _TooMuchError as error:
        said = f"aliases repeat more than {MOST_REPEATED:,} values by here; repeat fewer"
        return error.line, said
    return None


class _TooMuchError(Exception):
    """Excess of repeated values in the list or mapping at `line`."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Counting:
    """Counter of a document's values as if each alias were written out."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()
        self._repeated = 0

    def size(self, node: yaml.Node, around: yaml.Node) -> int:
        """Return how many values the node means, itself included.

        Raises:
            _TooMuchError: at the line of `around` when an alias in it passes the limit.
        """
        key = id(node)
        if key in self._open:
            return 1
        if key in self._sizes:
            self._repeated += self._sizes[key]
            if self._repeated > MOST_REPEATED:
                raise _TooMuchError(around.start_mark.line + 1)
            return self._sizes[key]
        self._open.add(key)
        self._sizes[key] = 1 + sum(self.size(inner, node) for inner in _inside(node))
        self._open.discard(key)
        return self._sizes[key]


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for pair in node.value for value in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
