"""Every registered strategy and chain, and the laws that it is declared to break or claims to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from emberge import Block, Stage
from emberge_merge import Group, Linear

from tests.support.chains import chain


def needs_whole(links: Sequence[Stage]) -> bool:
    """Return whether a link takes matrices in one piece."""
    return any(link.needs_whole(Block.of(torch.zeros(1, 1, 1))) for link in links)


# Methods that choose among changes give another model for copies of one.
CHOOSES = {"identity": False}
# Every registered strategy and chain: (its links, what it is declared to break or claims to keep).
CHAINS: dict[str, tuple[Sequence[Stage], dict[str, Any]]] = {
    "breadcrumbs": (chain("breadcrumbs", density=0.7, gamma=0.1), CHOOSES),
    "breadcrumbs, density 1": (chain("breadcrumbs"), {"one_hot": True}),
    "breadcrumbs_ties": (chain("breadcrumbs_ties", density=0.7, gamma=0.1), CHOOSES),
    "dare_linear": (chain("dare_linear", density=0.5), CHOOSES),
    "dare_linear, density 1": (chain("dare_linear"), {"one_hot": True}),
    "dare_ties": (chain("dare_ties", density=0.5, rescale_mode="inverse_density"), CHOOSES),
    "della": (chain("della", density=0.5), CHOOSES),
    "della, density 1": (chain("della"), {"one_hot": True}),
    "della_linear": (chain("della_linear", density=0.5), CHOOSES),
    "group": ([Group(by=Linear()), Linear()], {"one_hot": True}),
    "iso_c": (chain("iso_c"), CHOOSES),
    "karcher": (chain("karcher"), {"one_hot": True}),
    # The base is in the result even of copies of one model.
    "keep_base": (chain("keep_base", keep=0.5, by=Linear()), {"identity": False}),
    "keep_base, karcher": (
        chain("keep_base", by=chain("karcher")[0], keep=0.2),
        {"identity": False},
    ),
    "layer_softmax": (chain("layer_softmax", normalise="mean"), {}),
    "linear": (chain("linear"), {"one_hot": True}),
    "model_stock": (chain("model_stock"), {}),
    "model_stock, raw": (chain("model_stock", clamp=False), {}),
    "multi_slerp": (chain("multi_slerp"), {"one_hot": True}),
    "multi_slerp projected": (chain("multi_slerp", mode="projected"), {"one_hot": True}),
    "multi_slerp of deltas": (chain("multi_slerp", space="deltas"), {"one_hot": True}),
    "nuslerp": (chain("nuslerp"), {"one_hot": True}),
    "nuslerp of deltas": (chain("nuslerp"), {"base": True, "one_hot": True}),
    "passthrough": (chain("passthrough"), {}),
    # What statistics make of it is in its own tests; without a file it averages.
    "regmean": (chain("regmean", statistics=()), {"one_hot": True}),
    "sce": (chain("sce"), {}),
    "sce of the places that differ most": (chain("sce", select_topk=0.3), CHOOSES),
    "sce_unanimous": (chain("sce_unanimous"), {}),
    # Each next model is walked to in turn, so their order is meant.
    "sequential_slerp": (chain("sequential_slerp"), {"permutation": False, "one_hot": True}),
    "sign_consensus": (chain("sign_consensus"), {"one_hot": True}),
    "slerp": (chain("slerp"), {}),
    # t is a place between the first and the second, so the order of the two is meant.
    "slerp, a quarter": (chain("slerp", t=0.25), {"permutation": False}),
    "task_arithmetic": (chain("task_arithmetic"), {"one_hot": True}),
    "task_arithmetic, normalized": (chain("task_arithmetic", normalize=True), {"one_hot": True}),
    "ties": (chain("ties", density=0.5), CHOOSES),
    "ties, density 1": (chain("ties"), {"one_hot": True}),
    "trimmed arithmetic": ([*chain("trim"), *chain("task_arithmetic")], CHOOSES),
    "tsv_m": (chain("tsv_m"), CHOOSES),
    "wudi": (chain("wudi"), CHOOSES),
}
