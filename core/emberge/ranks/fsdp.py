"""Weights that several ranks share (FSDP2): split, gathered to be saved, restored and clipped.

Without a split, all functions work on ordinary tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from emberge.contracts import Encoder
from emberge.ranks.ranks import RankGroup

PROBE_TEXT = "a text to see which modules run"


def split_weights(encoder: Encoder, ranks: RankGroup) -> None:
    """Split the encoder's weights among the ranks (FSDP2; Zhao et al., 2023, arXiv:2304.11277).

    The modules that a forward pass calls first are split, and so are the repeated blocks in them. An encoder
    need not call its `module`, and if a split module is not called, its hooks never gather its weights.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(torch.device(ranks.device).type, (ranks.size,))
    called_modules = _list_called_modules(encoder)
    roots = [
        m
        for m in called_modules
        if not any(m is not other and m in other.modules() for other in called_modules)
    ]
    for root in roots:
        for block in [b for b in _find_blocks(root) if b in called_modules and _has_weights(b)]:
            fully_shard(block, mesh=mesh)
        if _has_weights(root):
            fully_shard(root, mesh=mesh)


def _list_called_modules(encoder: Encoder) -> list[nn.Module]:
    called_modules: list[nn.Module] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, _: called_modules.append(m))
        for module in encoder.module.modules()
    ]
    try:
        texts = encoder.tokenise([PROBE_TEXT], prompt="", max_length=None)
        device = next(encoder.module.parameters()).device
        with torch.no_grad():
            encoder({name: value.to(device) for name, value in encoder.collate(texts).items()})
    finally:
        for hook in hooks:
            hook.remove()
    return list(dict.fromkeys(called_modules))


def _find_blocks(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost module lists: a transformer's layers."""
    for child in root.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _find_blocks(child)


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def is_split(tensor: Tensor) -> bool:
    """Return whether the tensor is split among the ranks."""
    return isinstance(tensor, DTensor)


def gather_on_cpu(tensor: Tensor) -> Tensor:
    """Return the whole tensor on the CPU; every rank must call it."""
    return gather_whole(tensor).detach().cpu()


def get_local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a split tensor, in the same memory; any other tensor as it is."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def place_like(like: Tensor, value: Tensor) -> Tensor:
    """Return a whole tensor `value`, split among the ranks and placed as the tensor `like` is."""
    value = value.to(like.device)
    if isinstance(like, DTensor):
        return distribute_tensor(value, like.device_mesh, like.placements)
    return value


@contextlib.contextmanager
def gather_weights(module: nn.Module) -> Iterator[None]:
    """Gather the module's split parameters on the CPU while the block runs, to be saved.

    Parameters are replaced one by one, as FSDP2 splits its own parameters again as soon as the state is read.
    """
    split = [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner.named_parameters(recurse=False)
        if is_split(parameter)
    ]
    full: dict[int, nn.Parameter] = {}  # one that is tied stays so
    for owner, name, parameter in split:
        if id(parameter) not in full:
            full[id(parameter)] = nn.Parameter(gather_on_cpu(parameter), parameter.requires_grad)
        owner.register_parameter(name, full[id(parameter)])
    try:
        yield
    finally:
        for owner, name, parameter in split:
            owner.register_parameter(name, parameter)


def sum_gradients(parameters: Sequence[Tensor], ranks: RankGroup, splits_weights: bool) -> None:
    """Replace every gradient by the sum over ranks; FSDP2 has already summed those of split parameters."""
    whole_parameters = [parameter for parameter in parameters if not is_split(parameter)]
    if splits_weights:
        # The gradient cache has scaled all gradients for the mean that split parameters get.
        for parameter in whole_parameters:
            if parameter.grad is not None:
                parameter.grad.div_(ranks.size)
    ranks.add_up_gradients(whole_parameters)


def clip_gradients(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Scale all gradients to a total norm of at most `limit`, and return the norm before."""
    with_grad = [p for p in parameters if p.grad is not None]
    if not any(is_split(p) for p in with_grad):
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    squares = torch.zeros((), device=with_grad[0].device)
    for split in (True, False):
        grads = [p.grad for p in with_grad if p.grad is not None and is_split(p) == split]
        if grads:
            norm = torch.nn.utils.get_total_norm(grads)
            squares = (
                squares + gather_whole(norm).to(torch.promote_types(norm.dtype, torch.float32)) ** 2
            )
    total = squares.sqrt()
    factor = torch.clamp(limit / (total + 1e-6), max=1.0)
    for parameter in with_grad:
        assert parameter.grad is not None
        get_local_part(parameter.grad).mul_(factor)
    return total


def gather_whole(tensor: Tensor) -> Tensor:
    """Return a split tensor as a whole tensor on its device; every rank must call it."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full
