"""The law of `emberge.testing` that a component breaks, as a value that a test compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def find_broken_law(check: Callable[..., None], *arguments: Any, **options: Any) -> str:
    """Return the first line of the law that the check finds broken; "" if all are kept."""
    try:
        check(*arguments, **options)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""
