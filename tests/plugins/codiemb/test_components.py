"""Names under which a recipe finds what the plugin implements."""

from __future__ import annotations

import emberge_codiemb.hooks
import pytest
from emberge import Plugins

COMPONENTS = {
    "sampler": {"mixed": "Mixed"},
    "loss": {"mid_nce": "MidNCE", "pearson": "Pearson", "pro": "PRO", "rank_kl": "RankKL"},
    "merge strategy": {"layer_softmax": "LayerSoftmax"},
}


@pytest.mark.parametrize("kind", COMPONENTS)
def test_each_name_leads_to_its_class(kind: str) -> None:
    plugins = Plugins()
    plugins.register(emberge_codiemb.hooks, "codiemb")
    found = {one.name: one.type.__name__ for one in plugins.components if one.kind == kind}
    assert found == COMPONENTS[kind]
