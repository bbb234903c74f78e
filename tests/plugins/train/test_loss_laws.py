"""Every registered loss keeps the laws of training; what is declared to differ is switched off by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from emberge import Loss, TokenLoss, load_plugins
from emberge.testing import check_loss

from tests.support.laws import find_broken_law
from tests.support.losses import LOSSES

REGISTERED = {c.name: c.type for c in load_plugins().components if c.kind == "loss"}
LISTED = {name.partition(",")[0] for name in LOSSES}
# A loss that has no entry of its own is tried as it comes.
PLAIN: Mapping[str, tuple[Loss, Mapping[str, bool]]] = {
    name: (type_(), {})
    for name, type_ in REGISTERED.items()
    if name not in LISTED and not issubclass(type_, TokenLoss)
}
TRIED = {**LOSSES, **PLAIN}


SLOW = {"matryoshka, sum"}
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TRIED]


@pytest.mark.parametrize("name", CASES)
def test_the_losses_keep_the_laws(name: str) -> None:
    loss, exceptions = TRIED[name]
    assert find_broken_law(check_loss, loss, **exceptions) == ""


def test_no_entry_is_of_a_loss_that_is_gone() -> None:
    assert not LISTED - set(REGISTERED)
