"""Every loss keeps the laws of training; what is declared to differ is switched off by name."""

from __future__ import annotations

import pytest
from emberge import TokenLoss, load_plugins
from emberge.testing import check_loss

from tests.losses import LOSSES


@pytest.mark.parametrize("name", LOSSES)
def test_the_losses_keep_the_laws(name: str) -> None:
    loss, exceptions = LOSSES[name]
    check_loss(loss, **exceptions)


def test_no_loss_is_left_out() -> None:
    tried = {name.partition(",")[0] for name in LOSSES}
    known = {c.name: c.type for c in load_plugins().components if c.kind == "loss"}
    assert {name for name, type_ in known.items() if not issubclass(type_, TokenLoss)} == tried
