"""Each collective of two ranks, tried once in processes that are forked from one that has imported all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from emberge.ranks import RanksError, join_ranks, leave_ranks, sum_gradients

from tests.support import ranked_fit


def _try_collectives(path: Path, told: Mapping[str, str]) -> None:
    rank, ranks = ranked_fit.enter(path, told), join_ranks()
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    for parameter in parameters[: rank + 1]:
        parameter.grad = torch.ones(1)
    sum_gradients(parameters, ranks, splits_weights=False)
    with pytest.raises(RanksError if rank else ZeroDivisionError, match="integer division"):
        ranks.run_on_first_rank(lambda: 1 // 0)
    found = {
        "flags": ranks.join_flags([False, rank == 0, rank == 1]),
        "largest": ranks.find_largest(rank + 3),
        "sum": ranks.sum_over_ranks(torch.tensor(rank + 1.0)).item(),
        "rows": ranks.gather(torch.full((rank + 1, 1), float(rank)), (1, 2)).tolist(),
        "sent": ranks.share_from_first([rank]),
        "tensor": ranks.broadcast(None if rank else {"a": torch.ones(2)})["a"].tolist(),
        "result": ranks.run_on_first_rank(lambda: rank),
        "gradients": [None if p.grad is None else p.grad.item() for p in parameters],
    }
    ranks.wait_for_all()
    path.with_suffix(f".{rank}.json").write_text(json.dumps(found))
    leave_ranks()


def test_every_collective_gives_both_ranks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "case"
    codes = ranked_fit.codes(ranked_fit.fork(_try_collectives, path, 2))
    assert codes == [0, 0], ranked_fit.said(path, 0)
    expected = {
        "flags": [False, True, True],
        "largest": 4,
        "sum": 3.0,
        "rows": [[0.0], [1.0], [1.0]],
        "sent": [0],
        "tensor": [1.0, 1.0],
        "result": 0,
        "gradients": [2.0, 1.0, None],
    }
    for rank in range(2):
        assert json.loads(path.with_suffix(f".{rank}.json").read_text()) == expected
