"""A dense transformer with experts in place of the feed-forward blocks of some layers.

Router, experts and gates are those of sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055) as Nomic
Embed v2 has it (Nussbaum and Duderstadt, 2025, arXiv:2502.07972): each token goes to the `top_k` experts with
the largest router probabilities, and none is dropped. The dense model may be of any type in `FEED_FORWARD`;
its attention, norms and embeddings do not change and keep their names. This file imports only torch and
transformers, so it can be a part of a model's folder, where `AutoModel.from_pretrained(folder,
trust_remote_code=True)` reads it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init


class FeedForward(NamedTuple):
    """Location of a layer's feed-forward block: its path, with {} for the layer, and the modules below it.

    The modules run one after the other. If there are none, the module at the path is the block.
    """

    path: str
    modules: tuple[str, ...] = ()

    def of(self, layer: int) -> str:
        """Return the block's path in a layer; `router.weight` and `experts.{e}.…` are below it."""
        return self.path.format(layer)


_MLP = FeedForward("layers.{}.mlp")
# Dropout, norm and residual are in `output` beside its dense layer, and stay the dense model's.
_BERT = FeedForward("encoder.layer.{}", ("intermediate", "output.dense"))

FEED_FORWARD = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "jina_embeddings_v3": _MLP,
    "modernbert": _MLP,
    "gemma3_text": _MLP,
    "qwen3": _MLP,
    "llama": _MLP,
    "mistral": _MLP,
    "eurobert": _MLP,
    "granite": _MLP,
}
"""Feed-forward blocks by the dense model's type, in memory; `dense_model.BLOCKS` has them on disk."""


class EmbergeRoutedConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Config of a routed model: the dense model's config, and the routing of its layers.

    `inner` is the dense model's whole config, `routed_layers` the layers with experts. Gates are the router's
    probabilities of the `top_k` experts, scaled to a sum of 1 with `normalize_gates`.
    """

    model_type = "emberge_routed"
    sub_configs = {"inner": AutoConfig}  # noqa: RUF012
    has_no_defaults_at_init = True

    inner: dict[str, Any] | PreTrainedConfig | None = None
    routed_layers: list[int] | None = None
    num_experts: int = 8
    top_k: int = 2
    normalize_gates: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.routed_layers = list(self.routed_layers or ())
        if isinstance(self.inner, dict):
            self.inner = AutoConfig.for_model(**self.inner)
        if self.inner is not None:
            self._check(self.inner)
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def _check(self, inner: PreTrainedConfig) -> None:
        if inner.model_type not in FEED_FORWARD:
            raise ValueError(
                f"a model of type '{inner.model_type}' cannot be routed: its feed-forward blocks are not "
                f"known; those of {', '.join(FEED_FORWARD)} are"
            )
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"top_k is {self.top_k}, of {self.num_experts} experts")
        invalid_layers = [
            i for i in self.routed_layers or () if not 0 <= i < inner.num_hidden_layers
        ]
        if invalid_layers:
            raise ValueError(
                f"routed_layers has {invalid_layers[0]}, and layers are 0 to {inner.num_hidden_layers - 1}"
            )

    def get_text_config(self, *args: Any, **kwargs: Any) -> Any:
        """Return the dense model's config, which has the sizes; without a dense model, this config."""
        inner: Any = self.inner
        return self if inner is None else inner.get_text_config(*args, **kwargs)


class Wrapper(PreTrainedModel):  # type: ignore[no-untyped-call]
    """A model of transformers under another config; the inner model's modules become the wrapper's own."""

    _inner: Any
    config_class = EmbergeRoutedConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # Heads and poolers of the dense checkpoint may lie beside.
    _keys_to_ignore_on_load_unexpected = [r"pooler"]  # noqa: RUF012

    def __init__(self, config: EmbergeRoutedConfig) -> None:
        super().__init__(config)
        inner = self._build_inner(config)
        # Not registered itself: its children are, and their names have nothing before them.
        self.__dict__["_inner"] = inner
        for name, child in inner.named_children():
            self.add_module(name, child)
        self.base_model_prefix = inner.base_model_prefix
        self._no_split_modules = inner._no_split_modules
        self._keep_in_fp32_modules = inner._keep_in_fp32_modules
        self._keys_to_ignore_on_load_unexpected = [
            *(inner._keys_to_ignore_on_load_unexpected or ()),
            *(type(self)._keys_to_ignore_on_load_unexpected),
        ]
        self.post_init()  # type: ignore[no-untyped-call]

    def _build_inner(self, config: EmbergeRoutedConfig) -> Any:
        """Build the wrapped model of transformers, with experts."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the dense model's output for its own arguments."""
        return self._inner(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules by name, and the dense model under this module's own name.

        By that name, transformers finds the dense model's conversions between names in memory and on disk.
        The dense model comes first, as its conversions also hold for its parts and are then not applied
        twice.
        """
        if "_inner" in self.__dict__:
            yield (args[1] if len(args) > 1 else kwargs.get("prefix", "")), self._inner
        yield from super().named_modules(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings."""
        embeddings: nn.Module = self._inner.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self._inner.set_input_embeddings(value)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Router):
            init.normal_(module.weight, std=0.02)
        else:
            self._inner._init_weights(module)


class EmbergeRoutedModel(Wrapper):  # type: ignore[no-untyped-call]
    """A dense model whose `routed_layers` have a router and experts in place of the feed-forward block.

    Inputs and outputs are those of the dense model. The dense model's modules are attributes of this model,
    so tensors have the same names as in the dense model.
    """

    def _build_inner(self, config: EmbergeRoutedConfig) -> Any:
        dense: Any = MODEL_MAPPING[type(config.inner)]  # type: ignore[index]
        pooler = "add_pooling_layer" in inspect.signature(dense.__init__).parameters
        inner = dense._from_config(config.inner, **({"add_pooling_layer": False} if pooler else {}))
        feed_forward = FEED_FORWARD[inner.config.model_type]
        for layer in config.routed_layers or ():
            _route(inner, feed_forward.of(layer), feed_forward.modules, config)
        return inner


class EmbergeRoutedForMaskedLM(Wrapper):  # type: ignore[no-untyped-call]
    """A routed model with the dense model's head that predicts tokens, under the head's names in that model.

    The head is the dense model's head for masked tokens; if it has none, its head for next tokens.
    """

    def _build_inner(self, config: EmbergeRoutedConfig) -> Any:
        kind: Any = type(config.inner)
        masked = kind in MODEL_FOR_MASKED_LM_MAPPING
        dense: Any = (MODEL_FOR_MASKED_LM_MAPPING if masked else MODEL_FOR_CAUSAL_LM_MAPPING)[kind]
        inner = dense._from_config(config.inner)
        setattr(inner, inner.base_model_prefix, EmbergeRoutedModel(config))
        return inner

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer that makes logits."""
        embeddings: nn.Module = self._inner.get_output_embeddings()
        return embeddings

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the layer that makes logits."""
        self._inner.set_output_embeddings(value)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return the dense model's names of tied weights, as its config states them."""
        tied: dict[str, str] = self._inner.get_expanded_tied_weights_keys(all_submodels)
        return tied


def _route(
    model: nn.Module, path: str, modules: Sequence[str], config: EmbergeRoutedConfig
) -> None:
    """Replace the feed-forward block at a path by a router and copies of the block."""
    block = model.get_submodule(path)
    expert = BlockModules(block, modules) if modules else block
    routed = RoutedFeedForward(expert, config)
    if not modules:
        model.set_submodule(path, routed)
        return
    block.router, block.experts = routed.router, routed.experts
    first, *others = modules
    block.set_submodule(first, Borrowed(routed))
    for name in others:
        block.set_submodule(name, nn.Identity())


class BlockModules(nn.Module):
    """Modules that run one after the other, under the paths that they have in `block`."""

    def __init__(self, block: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self.paths = tuple(paths)
        for path in paths:
            parent: nn.Module = self
            *above, name = path.split(".")
            for part in above:
                parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(name, block.get_submodule(path))

    def forward(self, states: Tensor) -> Tensor:
        """Return the last module's output."""
        for path in self.paths:
            states = self.get_submodule(path)(states)
        return states


class Borrowed(nn.Module):
    """A module that is called here, but whose parameters are named by another module."""

    _module: Any

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["_module"] = module

    def forward(self, states: Tensor) -> Tensor:
        """Return the module's output."""
        output: Tensor = self._module(states)
        return output


class Router(nn.Module):
    """A linear layer without bias that gives every token its experts."""

    def __init__(self, config: EmbergeRoutedConfig) -> None:
        super().__init__()
        width: int = config.get_text_config().hidden_size
        self.weight = nn.Parameter(torch.empty(config.num_experts, width))
        self.top_k, self.normalize = config.top_k, config.normalize_gates

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [t, experts], and the chosen experts' gates and indices [t, k], for states [t, d]."""
        logits = F.linear(states, self.weight)
        wide_dtype = torch.promote_types(logits.dtype, torch.float32)
        gates, experts = logits.softmax(-1, dtype=wide_dtype).topk(self.top_k)
        if self.normalize:
            gates = gates / gates.sum(-1, keepdim=True)
        return logits, gates, experts


class RoutedFeedForward(nn.Module):
    """A router and experts, copies of one dense block at the start."""

    def __init__(self, expert: nn.Module, config: EmbergeRoutedConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = nn.ModuleList(copy.deepcopy(expert) for _ in range(config.num_experts))

    def forward(self, states: Tensor) -> Tensor:
        """Return the gate-weighted sum of each token's expert outputs, in the shape of `states`."""
        tokens = states.reshape(-1, states.shape[-1])
        _, gates, choices = self.router(tokens)
        # Tokens in the order of their experts: each expert runs once, on one piece of memory.
        order = choices.flatten().argsort(stable=True)
        inverse_order = torch.empty_like(order)
        inverse_order[order] = torch.arange(len(order), device=order.device)
        sizes = choices.flatten().bincount(minlength=len(self.experts)).tolist()
        copies = tokens.unsqueeze(1).expand(-1, choices.shape[1], -1).reshape(-1, tokens.shape[1])
        parts = Permuted.apply(copies, order, inverse_order).split(sizes)  # type: ignore[no-untyped-call]
        # An expert without tokens runs too: its gradient is zero on every rank, rather than none on some.
        outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        output: Tensor = Permuted.apply(torch.cat(outputs), inverse_order, order)  # type: ignore[no-untyped-call]
        output = output.view(*choices.shape, -1)
        weighted_sums: Tensor = (output * gates.unsqueeze(-1)).sum(1)
        return weighted_sums.to(output.dtype).view(states.shape)


class Permuted(torch.autograd.Function):
    """Rows in another order; the gradient is gathered in the inverse order, not added up row by row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        """Return `rows[order]`; `inverse` is the inverse order."""
        ctx.save_for_backward(order, inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the rows."""
        order, inverse = ctx.saved_tensors
        return Permuted.apply(pull, inverse, order), None, None  # type: ignore[no-untyped-call]
