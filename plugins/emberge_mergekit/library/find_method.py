"""Methods of mergekit by name: from the table, or from mergekit itself where the table has none."""

from __future__ import annotations

import functools

from emberge_mergekit.library.methods import METHODS, Method


def method_named(name: str) -> Method | None:
    """Return the method of this name, from the table or, failing that, from mergekit's registry."""
    return METHODS.get(name) or _registered(name)


@functools.cache
def _registered(name: str) -> Method | None:
    from emberge_mergekit.library.library import registered_method

    try:
        return registered_method(name)
    except KeyError:
        return None
