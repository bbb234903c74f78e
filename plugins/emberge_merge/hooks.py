"""Merging: every method as a strategy or transform, and the steps that merge models and adapters."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import ChainSpec, MergeStrategy, MergeTransform, hookimpl


@hookimpl
def register_merge_transforms() -> Mapping[str, type[MergeTransform]]:
    from emberge_merge.methods import transforms

    return transforms()


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy] | ChainSpec]:
    from emberge_merge.methods import strategies

    return strategies()


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "merge": "emberge_merge.steps.merge:Merge",
        "merge_adapters": "emberge_merge.steps.merge_adapters:MergeAdapters",
        "extract_lora": "emberge_merge.steps.extract_lora:ExtractLora",
    }
