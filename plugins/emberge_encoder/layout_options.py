"""Options of a text encoder that change the modules after its transformer, and the texts before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from emberge import Backbone, CheckpointError, Count, TextLength
from emberge.model_folder import ModuleFolder, TextLimit, read_object
from emberge.wording import join_some

from emberge_encoder.layout import Layout
from emberge_encoder.text.attention_config import (
    is_causal,
    read_declared_attention,
    switch_attention,
)

Pooling = Literal["mean", "cls", "last", "weighted_mean"]
# Kinds of pooling over tokens that know little of the text where attention is causal.
_BLIND_POOLINGS = frozenset({"mean", "cls", "max", "mean_sqrt_len"})


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(Backbone):
    """Backbone with options of pooling, normalisation, size, prompts and length."""

    pooling: Pooling | None = None
    """Pooling over tokens, which a bare folder needs unless the model is causal: then the last is pooled."""
    normalize: bool | None = None
    """Scale embeddings to length 1, as a bare folder does by default."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Texts before others by name: `query`, `document`."""
    include_prompt: bool | None = None
    """With false the transformer reads a prompt, but pooling excludes its tokens, as CoDiEmb
    (arXiv:2508.11442) does, and sentence-transformers with the saved folder. A token across the prompt's end
    belongs to the text, which sentence-transformers excludes: with byte-level tokenizers end the prompt
    without a space. A chat template's prompt is always pooled."""
    dense: Count | None = None
    """Size of embeddings of a new linear layer after the pooling, a stock Dense without bias and activation.
    It begins as the identity, or as random orthogonal rows if it changes the size, and gives a student its
    teacher's vectors (LEAF, arXiv:2509.12539). A last Dense of this size is kept."""
    max_length: TextLength | None = None
    """Number of tokens at which a text is cut; by default the folder's limit or the model's positions."""

    def change_layout(self, layout: Layout, config: Mapping[str, Any]) -> Layout:
        """Return a folder's layout as the options change it; `config` is the transformer's.

        Raises:
            CheckpointError: if the pooling is unknown or does not fit the attention, or the model has fewer
                positions than `max_length`.
        """
        layout = self._change_modules(layout, config)
        limit = TextLimit.read(layout.trunk_folder)
        limit.require(self.max_length)
        return dataclasses.replace(
            layout,
            max_length=self.max_length or limit.longest,
            prompts={**layout.prompts, **self.prompts},
        )

    def _change_modules(self, layout: Layout, config: Mapping[str, Any]) -> Layout:
        """Return the layout whose modules after the transformer follow the options.

        Raises:
            CheckpointError: if the pooling is unknown or does not fit the attention.
        """
        causal = is_causal(config)
        pooling = self.pooling or (layout.pooling[0] if layout.pooling else None)
        if layout.bare and pooling is None:
            if not causal:
                raise CheckpointError(
                    f"{layout.folder}: has no modules.json to say how it pools; "
                    "name it: backbone: {text_encoder: {pooling: mean}} (or cls, last)"
                )
            pooling = "last"
        kinds = [m.kind for m in layout.modules]
        if layout.bare:
            layout = dataclasses.replace(layout, modules=(ModuleFolder("Pooling", "1_Pooling"),))
        elif "Pooling" not in kinds:
            raise CheckpointError(
                f"{layout.folder}/modules.json: has no Pooling module, so no embedding of a text"
            )
        if self.pooling or layout.bare:
            layout = dataclasses.replace(layout, pooling=(str(pooling),))
        if causal and read_declared_attention(config) == "as is":
            refuse_blind_pooling(layout, config)
        if self.include_prompt is not None:
            layout = dataclasses.replace(layout, include_prompt=self.include_prompt)
        return self._set_normalization(self._add_dense(layout))

    def _add_dense(self, layout: Layout) -> Layout:
        """Return the layout with a Dense before its Normalize, unless its last Dense has the size."""
        sizes = [
            read_object(layout.folder / module.path / "config.json").get("out_features")
            for module in layout.modules
            if module.kind == "Dense"
        ]
        if self.dense is None or sizes[-1:] == [self.dense]:
            return layout
        before = [module for module in layout.modules if module.kind != "Normalize"]
        after = [module for module in layout.modules if module.kind == "Normalize"]
        dense = ModuleFolder("Dense", f"{len(layout.modules) + 1}_Dense")
        return dataclasses.replace(layout, modules=(*before, dense, *after))

    def _set_normalization(self, layout: Layout) -> Layout:
        """Return the layout with or without a Normalize module, as in the options."""
        has_normalize = any(m.kind == "Normalize" for m in layout.modules)
        normalized = self.normalize if self.normalize is not None else has_normalize or layout.bare
        if normalized == has_normalize:
            return layout
        modules = tuple(m for m in layout.modules if m.kind != "Normalize")
        if normalized:
            modules += (ModuleFolder("Normalize", f"{len(modules) + 1}_Normalize"),)
        return dataclasses.replace(layout, modules=modules)


def refuse_blind_pooling(layout: Layout, config: Mapping[str, Any]) -> None:
    """Refuse pooling modes that would see little of a text under causal attention."""
    if not layout.pooling or not set(layout.pooling) <= _BLIND_POOLINGS:
        return
    try:
        switch_attention(config, "bidirectional")
        fix = "attention: bidirectional, or pooling: last"
    except CheckpointError:
        fix = "pooling: last"
    raise CheckpointError(
        f"{layout.folder}: its attention is causal, so {join_some(layout.pooling)} pooling sees little; set "
        f"{fix} (or attention: causal, if you mean it)"
    )
