"""Runner of a batch's chunks, with equal random numbers in each pass; it keeps graphs as memory allows.

Each chunk runs by itself, in the precision of its `EncodePlan`. A first pass keeps as many graphs as fit into
memory. The other chunks run without a graph, and are run again with one in the second pass. They give the
same bits, as texts, seed and order are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from emberge.contracts import Auxiliary, AuxiliaryMetrics
from emberge.devices import read_available_memory
from emberge.encoding.chunks import ChunkFeatures, Features
from emberge.ranks import SINGLE_RANK, RankGroup
from emberge.seeds import make_seed

# On a CPU other trainings may run at the same time; a GPU has one training.
CPU_SHARE = 0.25
GPU_SHARE = 0.6
# Gradient and two moments of AdamW, float32.
BYTES_A_PARAMETER = 12
# Longest text, in tokens, whose attention is computed by plain products of matrices on a CPU in bfloat16.
# torch's kernel of fused attention takes up to 1.7 times as long; products of longer texts would fill memory.
PLAIN_ATTENTION = 128


def measure_activation_budget(module: nn.Module, device: torch.device, local_ranks: int = 1) -> int:
    """Return the bytes for activations: a share of the memory left by gradients and the optimizer's moments.

    On a CPU the memory is shared by `local_ranks` ranks.
    """
    reserved_bytes = BYTES_A_PARAMETER * sum(p.numel() for p in _list_local_parameters(module))
    if device.type == "cuda":
        free, share = torch.cuda.mem_get_info(device)[0], GPU_SHARE
    else:
        free, share = read_available_memory() // local_ranks, CPU_SHARE
    return max(0, int((free - reserved_bytes) * share))


def _list_local_parameters(module: nn.Module) -> Iterator[Tensor]:
    """Yield a module's parameters; of those that are split over ranks, this rank's part."""
    for parameter in module.parameters():
        # Asked of the tensor, as `get_local_part` would load FSDP for every evaluation.
        to_local = getattr(parameter, "to_local", None)
        yield parameter if to_local is None else to_local()


@dataclass
class SavedBytes:
    """Number of bytes that forward passes have saved for their backward passes."""

    count: int = 0


@contextlib.contextmanager
def count_saved_bytes(module: nn.Module) -> Iterator[SavedBytes]:
    """Yield the count of the bytes that forward passes in the `with` block save for the backward pass."""
    module_storages = {p.untyped_storage().data_ptr() for p in _list_local_parameters(module)}
    saved = SavedBytes()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in module_storages:
            module_storages.add(storage.data_ptr())
            saved.count += storage.nbytes()
        return tensor.detach()  # returning an output itself would make a cycle

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


@dataclass(frozen=True)
class EncodePlan:
    """Settings of a batch's passes: chunk size, activations kept, precision, random numbers, ranks.

    Activations are kept for `kept_tokens` tokens or, if that is None, for as many tokens as fit into
    `kept_bytes`. If both are None, all activations are kept, as in a plain pass. `autocast` is a dtype, or
    None for the dtype of the weights. `draws_random` is True if a pass draws random numbers of any kind,
    which are then the same in both passes. With `splits_weights`, each of the `ranks` has a share of
    the weights, and all run equally many chunks at the same time. Texts of losses over tokens are packed
    into rows of `packing` tokens, unless that is None.
    """

    token_budget: int
    kept_tokens: int | None = None
    kept_bytes: int | None = None
    autocast: torch.dtype | None = None
    draws_random: bool = True
    ranks: RankGroup = SINGLE_RANK
    splits_weights: bool = False
    packing: int | None = None


@dataclass(frozen=True)
class PassResult:
    """Loss and counts of tokens of a training pass on one rank.

    `loss` is detached and on the device: this rank's share of the batch's loss, and the loss of the whole
    batch in what `Trainee.backward` returns. `tokens` is the number of tokens without padding, and
    `padded_tokens` the number with padding; activations were kept for `kept_tokens` of those. `counts` are
    the model's own counts of the whole batch on all ranks, which `metrics` reads.
    """

    loss: Tensor
    tokens: int
    padded_tokens: int
    kept_tokens: int = 0
    counts: Tensor | None = None
    metrics: AuxiliaryMetrics | None = None

    def __add__(self, other: PassResult) -> PassResult:
        """Return the sum of two passes of a rank."""
        counts = [result.counts for result in (self, other) if result.counts is not None]
        return PassResult(
            self.loss + other.loss,
            self.tokens + other.tokens,
            self.padded_tokens + other.padded_tokens,
            self.kept_tokens + other.kept_tokens,
            torch.stack(counts).sum(0) if counts else None,
            other.metrics or self.metrics,
        )


@dataclass(frozen=True, eq=False)
class ChunkOutput:
    """Output of a chunk's forward pass: tensors with a row for each text, and the model's own loss term."""

    values: list[Tensor]
    auxiliary: Auxiliary | None


@dataclass(eq=False)
class ChunkRunner:
    """Runner of a batch's chunks from `features`; the last `idle` chunks only keep ranks synchronous.

    `forward` computes outputs from a chunk's features. `lengths` are the numbers of tokens of the batch's
    rows.
    """

    features: ChunkFeatures
    lengths: NDArray[np.int64]
    forward: Callable[[Features], ChunkOutput]
    encode_plan: EncodePlan
    seed: int
    idle: int = 0
    kept_tokens: int = 0
    """Padded tokens of the batch's chunks whose graphs the first pass has kept."""
    metrics: AuxiliaryMetrics | None = None
    """Function that computes metrics from the model's counts; set after a first pass with a loss term."""
    _graphs: dict[int, ChunkOutput] = field(default_factory=dict)
    _counts: list[Tensor] = field(default_factory=list)

    @property
    def first_idle(self) -> int:
        """The number of chunks that are not idle, which is the index of the first idle chunk."""
        return len(self.features.pieces) - self.idle

    def run_first_pass(self) -> Iterator[ChunkOutput]:
        """Run every chunk, keep graphs and counts, and yield the outputs of all but idle chunks."""
        budget = _GraphBudget(
            self.features.encoder.module, self.encode_plan.kept_tokens, self.encode_plan.kept_bytes
        )
        for index, piece in enumerate(self.features.pieces):
            size = len(piece) * int(self.lengths[piece].max())
            keep = budget.fits(size)
            if self.encode_plan.splits_weights:
                # Ranks hand weights round in a pass: a chunk runs again on every rank or on none.
                keep = not self.encode_plan.ranks.join_flags([not keep])[0]
            with budget.measure_pass(size, keep):
                output = self.run(index, self.features[index])
            if keep:
                self._graphs[index] = output
            if index >= self.first_idle:
                continue
            if keep:
                self.kept_tokens += size
            if output.auxiliary is not None:
                self._counts.append(output.auxiliary.counts.detach())
                self.metrics = output.auxiliary.metrics
            yield output

    def sum_counts(self, *, texts_on_all_ranks: bool) -> Tensor | None:
        """Return the sum of the first pass's counts over chunks and ranks; None without a loss term.

        If not all ranks have texts (`texts_on_all_ranks`), a rank without a chunk gets the number of counts
        from the other ranks, and adds zeros.
        """
        ranks, counts = self.encode_plan.ranks, self._counts
        if not texts_on_all_ranks:
            size = ranks.find_largest(len(counts[0]) if counts else 0)
            if size and not counts:
                counts = [torch.zeros(size, dtype=torch.float64, device=self.features.device)]
        return ranks.sum_over_ranks(torch.stack(counts).sum(0)) if counts else None

    def pop_graph(self, index: int) -> ChunkOutput | None:
        """Return a chunk's output with its graph and forget it; None if the chunk has to run again."""
        return self._graphs.pop(index, None)

    def run(self, index: int, features: Features) -> ChunkOutput:
        """Run a chunk's forward pass with the chunk's random numbers, and return its output."""
        with (
            self.use_seeded_autocast(index, seeded=self.encode_plan.draws_random),
            self._choose_attention(index),
        ):
            return self.forward(features)

    def _choose_attention(self, index: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a chunk's attention is computed by the faster of torch's ways."""
        encoder = self.features.encoder
        longest = int(self.lengths[self.features.pieces[index]].max())
        in_bfloat16 = (
            self.features.device.type == "cpu" and self.encode_plan.autocast is torch.bfloat16
        )
        # With gradient checkpointing a block runs again in the backward pass, outside of this context. It
        # would compute attention in the other way there, and torch refuses activations that differ.
        modules = encoder.module.modules()
        recomputes_blocks = any(getattr(m, "gradient_checkpointing", False) for m in modules)
        if not in_bfloat16 or longest > PLAIN_ATTENTION or recomputes_blocks:
            return contextlib.nullcontext()
        return sdpa_kernel(SDPBackend.MATH)

    @contextlib.contextmanager
    def use_seeded_autocast(self, *key: object, seeded: bool = True) -> Iterator[None]:
        """Run the `with` block under the plan's autocast and, if `seeded`, with torch seeded from `key`."""
        # Seeding before every chunk instead of keeping generator states: both passes, and a run that was
        # killed and continued, draw the same numbers.
        device, dtype = self.features.device, self.encode_plan.autocast
        if seeded:
            set_torch_seed(device, make_seed(self.seed, *key))
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            yield


def set_torch_seed(device: torch.device, seed: int) -> None:
    """Seed the random numbers that torch draws for passes on a device."""
    if device.type == "cpu":
        # Not by torch.manual_seed, which formats the stack for each accelerator that there might be.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


class _GraphBudget:
    """A budget for kept activations: `tokens` padded tokens, or as many as fit into `size` bytes.

    Without either, all fit. The longest chunk must be the first.
    """

    def __init__(self, module: nn.Module, tokens: int | None, size: int | None) -> None:
        self._module, self._left = module, tokens
        self._bytes = size if tokens is None else None

    def fits(self, tokens: int) -> bool:
        """Return whether a chunk of this many padded tokens can be kept."""
        return self._left is None or self._left >= tokens

    @contextlib.contextmanager
    def measure_pass(self, tokens: int, keep: bool) -> Iterator[None]:
        """Run a chunk's forward pass in the `with` block, without a graph unless `keep`, and count it."""
        with contextlib.ExitStack() as stack:
            if not keep:
                stack.enter_context(torch.no_grad())
            saved = None
            if self._bytes is not None:
                saved = stack.enter_context(count_saved_bytes(self._module))
            yield
        if self._bytes is not None and saved is not None:
            # The first chunk is the longest, so none of the others needs more for a token.
            self._left = int(self._bytes / max(1, saved.count) * tokens)
            self._bytes = None
        if keep and self._left is not None:
            self._left -= tokens
