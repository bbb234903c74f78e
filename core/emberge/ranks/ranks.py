"""Ranks of a training: collectives, and how rows are split over processes.

Every rank draws the same batch and encodes its own rows. Losses that gather get all ranks' embeddings, in the
same order as with one rank. Each rank's backward pass goes only through its own rows; gradients of the
weights are then added up. So each step equals the step that one rank alone would take, except for rounding,
for each rank's own dropout, and for losses that do not gather.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from emberge.errors import EmbergeError

T = TypeVar("T")

# How long a rank waits for the others inside a step. A rank that dies is noticed at once.
STEP_TIMEOUT = datetime.timedelta(minutes=30)
# How long the others wait for the first rank's own work, such as an evaluation.
FIRST_RANK_TIMEOUT = datetime.timedelta(days=7)
# Gradients that travel together, in numbers.
GRADIENTS_AT_ONCE = 2**24


class RanksError(EmbergeError):
    """Error of ranks that have lost each other, or do not agree."""


class LostRankError(RanksError):
    """Error of a collective that failed, usually because another rank has ended."""


def shard_rows(size: int, rank: int, ranks: int) -> slice:
    """Return the rank's share of `size` rows: contiguous, in rank order, of nearly equal sizes."""
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


@dataclass(frozen=True, eq=False)
class RankGroup:
    """The ranks that train together, as one of them sees them: its number, their count, and collectives.

    The first rank writes files and logs, the others only train. With several ranks, all see the `store`, and
    wait for each other for days in the group `patient`.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    store: PrefixStore | None = None
    patient: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """True on the rank that writes, logs and shows progress."""
        return self.rank == 0

    @property
    def local_size(self) -> int:
        """Number of ranks on this machine, which share its cores and memory."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) if self.size > 1 else 1

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return all ranks' rows [sum of counts, …] in rank order, with a gradient to this rank's rows.

        Shards may differ in size; they are padded to the largest for the transfer.
        """
        if self.size == 1:
            return rows
        largest_count = max(counts)
        padded_rows = rows.new_zeros((largest_count, *rows.shape[1:]))
        padded_rows[: len(rows)] = rows.detach()
        gathered_rows = [torch.empty_like(padded_rows) for _ in counts]
        with _explain_lost_rank():
            dist.all_gather(gathered_rows, padded_rows)
        parts = [part[:count] for part, count in zip(gathered_rows, counts, strict=True)]
        parts[self.rank] = rows
        return torch.cat(parts)

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """Return the sum of every rank's value, the same bits on each."""
        if self.size > 1:
            value = value.clone()
            with _explain_lost_rank():
                dist.all_reduce(value)
        return value

    def join_flags(self, flags: Sequence[bool]) -> list[bool]:
        """Return, for each flag, whether any rank has set it; no device waits for the answer."""
        if self.size == 1 or not flags:
            return list(flags)
        raised_flags = torch.tensor(flags, dtype=torch.uint8)
        with _explain_lost_rank():
            dist.all_reduce(raised_flags, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in raised_flags.tolist()]

    def find_largest(self, number: int) -> int:
        """Return the largest of every rank's numbers."""
        if self.size == 1:
            return number
        maximum = torch.tensor([number], dtype=torch.int64)
        with _explain_lost_rank():
            dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
        return int(maximum)

    def add_up_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each gradient by the sum over all ranks; a gradient that no rank has stays None."""
        if self.size == 1:
            return
        has_gradient = self.join_flags([p.grad is not None for p in parameters])
        parameters_with_gradient = [
            p for p, has in zip(parameters, has_gradient, strict=True) if has
        ]
        for parameter in parameters_with_gradient:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _split_into_buckets(
            [p.grad for p in parameters_with_gradient if p.grad is not None]
        ):
            flat = torch.cat([grad.flatten() for grad in bucket])
            with _explain_lost_rank():
                dist.all_reduce(flat)
            for grad, part in zip(
                bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True
            ):
                grad.copy_(part.view_as(grad))

    def run_on_first_rank(self, work: Callable[[], T]) -> T:
        """Run a function on the first rank while the others wait, and return its JSON value on all.

        The others get tuples as lists.

        Raises:
            Exception: if the function raises it on the first rank; the other ranks get its text as a
                RanksError.
        """
        if self.size == 1:
            return work()
        if not self.is_first:
            failure, result = self.share_from_first(None)
            if failure is not None:
                raise RanksError(failure)
            return result  # type: ignore[no-any-return]
        try:
            result = work()
        except Exception as error:  # whatever it is, the others wait for it
            self.share_from_first((str(error), None))
            raise
        self.share_from_first((None, result))
        return result

    def wait_for_all(self) -> None:
        """Wait until every rank has called this, however long that takes."""
        if self.size > 1:
            with _explain_lost_rank():
                dist.barrier(self.patient)

    def share_from_first(self, value: Any) -> Any:
        """Return the first rank's JSON value on every rank; the others' values are ignored."""
        text = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(text)])
        with _explain_lost_rank():
            dist.broadcast(length, 0, self.patient)
            content = torch.empty(int(length), dtype=torch.uint8)
            content.numpy()[: len(text)] = bytearray(text)
            dist.broadcast(content, 0, self.patient)
        return json.loads(content.numpy().tobytes())

    def broadcast(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return the first rank's tensors on the CPU, on every rank."""
        if self.size == 1:
            return dict(tensors or {})
        shapes_and_dtypes = self.share_from_first(
            {
                name: (list(t.shape), str(t.dtype).removeprefix("torch."))
                for name, t in (tensors or {}).items()
            }
        )
        received = {}
        for name, (shape, dtype) in shapes_and_dtypes.items():
            tensor = (
                torch.empty(shape, dtype=getattr(torch, dtype))
                if tensors is None
                else tensors[name]
            )
            received[name] = tensor.contiguous()
            with _explain_lost_rank():
                dist.broadcast(received[name], 0)
        return received


SINGLE_RANK = RankGroup()


@contextlib.contextmanager
def _explain_lost_rank() -> Iterator[None]:
    """Turn torch's error of a failed collective, except lack of memory, into a LostRankError of one line."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (dist.DistError, RuntimeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise LostRankError(
            f"ranks lost each other, usually because another rank has ended ({line[:160]}); its own "
            "message names the reason, and the same command continues from the newest state"
        ) from error


def _split_into_buckets(grads: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield gradients of one dtype in order, about GRADIENTS_AT_ONCE numbers at a time."""
    bucket: list[Tensor] = []
    for grad in grads:
        is_full = sum(g.numel() for g in bucket) + grad.numel() > GRADIENTS_AT_ONCE
        if bucket and (is_full or grad.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(grad)
    if bucket:
        yield bucket


# The ranks of this process once it has joined its group, which it does only once.
_JOINED_RANKS: list[RankGroup] = []


def join_ranks(device: str = "cpu") -> RankGroup:
    """Return this process's ranks, as `torchrun`, `accelerate launch` or `emberge run --ranks` set them up.

    They are described by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Without these variables,
    or with a world size of 1, there is one rank. `device` is a kind or one device; each rank on a machine
    takes the GPU of its number. A process joins once: later calls return the same ranks and ignore `device`.

    Raises:
        RanksError: if the ranks do not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return RankGroup(device=device)
    if not _JOINED_RANKS:
        _JOINED_RANKS.append(_join_group(device))
    return _JOINED_RANKS[0]


def _join_group(device: str) -> RankGroup:
    on_gpu = device.startswith("cuda")
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        store, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
        if on_gpu:
            torch.cuda.set_device(torch.device(device))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=STEP_TIMEOUT,
        )
        patient = dist.new_group(backend="gloo", timeout=FIRST_RANK_TIMEOUT)
    except (dist.DistError, RuntimeError, OSError, ValueError, KeyError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} of {os.environ['WORLD_SIZE']} does not find the others "
            f"({line}); look at MASTER_ADDR, MASTER_PORT and RANK"
        ) from error
    return RankGroup(rank, size, device, PrefixStore("emberge", store), patient)


def leave_ranks() -> None:
    """Leave the group of ranks, at the end of a process."""
    if dist.is_initialized():
        dist.destroy_process_group()
        _JOINED_RANKS.clear()
