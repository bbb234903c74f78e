"""The device does not show in the bytes of elementwise methods, and hardly in those of any other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.merge_in_memory import merge_state_dicts
from tests.support.registered import CHAINS, needs_whole

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def models() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    base = {
        "layers.0.mlp.weight": torch.randn(300, 257, generator=generator),
        "layers.0.norm.weight": torch.randn(257, generator=generator),
        "scale": torch.randn((), generator=generator),
    }
    return [
        base,
        *(
            {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in base.items()}
            for _ in range(3)
        ),
    ]


@pytest.mark.parametrize("name", CHAINS)
def test_the_device_does_not_matter(name: str, models: list[dict[str, Tensor]]) -> None:
    links, exceptions = CHAINS[name]
    arity = links[0].arity
    count = min(max(arity.start, 3), arity.stop - 1)
    needs = any(link.base_policy == "required" for link in links) or exceptions.get("base")
    base = models[0] if needs else None
    chosen = models[1 : count + 1]
    found = {
        device: merge_state_dicts(
            chosen, links, base, device=device, workers=workers, block=4096, granule=8192
        )
        for device, workers in (("cpu", 1), ("cuda:0", 2))
    }
    elementwise = not any(link.passes for link in links) and not needs_whole(links)
    for tensor, expected in found["cpu"].items():
        if elementwise:
            assert torch.equal(found["cuda:0"][tensor], expected), tensor
        else:
            torch.testing.assert_close(found["cuda:0"][tensor], expected, atol=1e-5, rtol=1e-4)
