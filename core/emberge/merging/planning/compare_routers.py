"""A check that the routers of all models come from one upcycling; loads torch.

Experts are merged by their numbers, which mean the same in all models of one upcycling. An upcycling leaves a
fingerprint in config.json, and every training and merge keeps it. If models have no fingerprint or different
ones, they may come from separate upcyclings, in which the same number denotes different experts. The routers
show this: they have a row for each expert, drawn at random or from the expert's data. Routers are small, so
they are read before the work. Routers do not reveal separate upcyclings whose router rows began as zeros, as
training can turn such rows in any direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from emberge.errors import CheckpointError, Problem
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, TensorSpec

_ROUTER = re.compile(r"(?:(?:mlp|block_sparse_moe)\.gate|router(?:\.layer)?)\.weight")
# Cosine of two routers' rows below which their experts are not the same.
_SAME_EXPERTS_COSINE = 0.5
# Key of config.json for the fingerprint of the upcycling that a model comes from.
_UPCYCLING = "upcycling"


def router_problems(plan: MergePlan, checkpoints: Mapping[str, Checkpoint]) -> Iterator[Problem]:
    """Yield a problem for the first pair of models whose experts do not correspond by number."""
    origins = {name: one.config.get(_UPCYCLING) for name, one in checkpoints.items()}
    with TensorReader() as reader:
        for tensor in plan.tensors:
            router = len(tensor.out.shape) == 2 and _ROUTER.search(tensor.name)
            if not router or tensor.action != "merge":
                continue
            try:
                problem = _find_problem(plan, tensor, origins, reader)
            except CheckpointError as error:
                problem = Problem(str(error))
            if problem is not None:
                yield problem
                return


def _find_problem(
    plan: MergePlan, tensor: TensorPlan, origins: Mapping[str, object], reader: TensorReader
) -> Problem | None:
    """Return the problem of the first model whose router does not correspond to that of the first model."""
    models = zip(plan.request.inputs, tensor.sources, strict=True)
    rows = {model.name: _read_rows(spec, reader) for model, spec in models if spec is not None}
    first, *others = rows
    for other in others:
        if origins.get(first) is not None and origins.get(first) == origins.get(other):
            continue
        cosines = torch.nn.functional.cosine_similarity(rows[first], rows[other], dim=1)
        # A row of zeros, as routers may begin, has no direction.
        cosines[(rows[first].norm(dim=1) == 0) | (rows[other].norm(dim=1) == 0)] = 1.0
        worst = int(cosines.argmin())
        if float(cosines[worst]) < _SAME_EXPERTS_COSINE:
            return Problem(
                f"'{first}' and '{other}' were upcycled apart: the rows of expert {worst} in "
                f"{tensor.out.name} have a cosine of {float(cosines[worst]):.2f}, and below "
                f"{_SAME_EXPERTS_COSINE} it is another expert; merge models that were trained from one "
                "upcycled model, or make them dense "
                "with downcycle steps first"
            )
    return None


def _read_rows(spec: TensorSpec, reader: TensorReader) -> Tensor:
    rows = torch.empty(spec.shape)
    reader.read(spec, 0, rows.view(-1))
    return rows
