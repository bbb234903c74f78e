"""Each collective of two ranks, tried once in processes that are forked from one that has imported all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge.ranks import Ranks, RanksError, join_ranks, leave_ranks, sum_gradients

from tests.support import ranked_fit


def _try_collectives(path: Path, told: Mapping[str, str]) -> None:
    rank, ranks = ranked_fit.enter(path, told), join_ranks()
    found = {
        "flags": ranks.join_flags([False, rank == 0, rank == 1]),
        "largest": ranks.find_largest(rank + 3),
        "sum": ranks.sum_over_ranks(torch.tensor(rank + 1.0)).item(),
        "rows": ranks.gather(torch.full((rank + 1, 1), float(rank)), (1, 2)).tolist(),
        "sent": ranks.send_from_first([rank]),
        "tensor": ranks.broadcast(None if rank else {"a": torch.ones(2)})["a"].tolist(),
        "result": ranks.run_on_first_rank(lambda: rank),
        "gradients": _sum_gradients(ranks),
        "failure": _fail(ranks),
    }
    ranks.wait_for_all()
    path.with_suffix(f".{rank}.json").write_text(json.dumps(found))
    leave_ranks()


def _sum_gradients(ranks: Ranks) -> list[Any]:
    """Gradients of three parameters: all ranks have the first, only the second rank the second."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    for parameter in parameters[: ranks.rank + 1]:
        parameter.grad = torch.full((2,), ranks.rank + 1.0)
    sum_gradients(parameters, ranks, splits_weights=False)
    return [None if p.grad is None else p.grad.tolist() for p in parameters]


def _fail(ranks: Ranks) -> str:
    with pytest.raises((ZeroDivisionError, RanksError)) as caught:
        ranks.run_on_first_rank(lambda: 1 // 0)
    return f"{caught.type.__name__}: {caught.value}"


def test_every_collective_gives_both_ranks_the_same(tmp_path: Path) -> None:
    path, port = tmp_path / "case", ranked_fit.free_port()
    environments = [ranked_fit.environment(rank, 2, port) for rank in range(2)]
    processes = ranked_fit.fork(_try_collectives, path, environments)
    assert ranked_fit.codes(processes) == [0, 0], ranked_fit.said(path, 0)
    first, second = (json.loads(path.with_suffix(f".{rank}.json").read_text()) for rank in range(2))
    assert first.pop("failure").startswith("ZeroDivisionError: ")
    assert second.pop("failure").startswith("RanksError: integer division")
    assert (
        first
        == second
        == {
            "flags": [False, True, True],
            "largest": 4,
            "sum": 3.0,
            "rows": [[0.0], [1.0], [1.0]],
            "sent": [0],
            "tensor": [1.0, 1.0],
            "result": 0,
            "gradients": [[3.0, 3.0], [2.0, 2.0], None],
        }
    )
