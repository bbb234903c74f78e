"""What everyone expects: samplers, losses, backbones, merge stages, steps, readers, progress, cards.

Nothing that is imported here imports torch, so that finding the plugin costs little.
"""

from __future__ import annotations

from collections.abc import Mapping

from emberge import (
    Backbone,
    ChainSpec,
    Launcher,
    Loss,
    MergeStrategy,
    MergeTransform,
    Reader,
    Sampler,
    Step,
    TokenLoss,
    hookimpl,
)

from emberge_standard.hub import locate_model
from emberge_standard.reporters.model_card import card_of_finished, card_of_skipped, card_origin
from emberge_standard.reporters.progress import (
    metric_logged,
    run_finished,
    run_started,
    step_failed,
    step_finished,
    step_progressed,
    step_skipped,
    step_started,
    step_warned,
)

__all__ = [
    "card_of_finished",
    "card_of_skipped",
    "card_origin",
    "locate_model",
    "metric_logged",
    "run_finished",
    "run_started",
    "step_failed",
    "step_finished",
    "step_progressed",
    "step_skipped",
    "step_started",
    "step_warned",
]  # hooks that other modules of the plugin implement


@hookimpl
def register_samplers() -> Mapping[str, type[Sampler]]:
    from emberge_standard.samplers import samplers

    return samplers()


@hookimpl
def register_losses() -> Mapping[str, type[Loss] | type[TokenLoss]]:
    from emberge_standard.losses import losses

    return losses()


@hookimpl
def register_backbones() -> Mapping[str, type[Backbone]]:
    from emberge_standard.backbones.text_encoder import TextEncoder

    return {"text_encoder": TextEncoder}


@hookimpl
def register_merge_transforms() -> Mapping[str, type[MergeTransform]]:
    from emberge_standard.merging import transforms

    return transforms()


@hookimpl
def register_merge_strategies() -> Mapping[str, type[MergeStrategy] | ChainSpec]:
    from emberge_standard.merging import strategies

    return strategies()


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_standard.steps.evaluate import Evaluate
    from emberge_standard.steps.extract_lora import ExtractLora
    from emberge_standard.steps.measure_statistics import MeasureStatistics
    from emberge_standard.steps.merge import Merge
    from emberge_standard.steps.merge_adapters import MergeAdapters
    from emberge_standard.steps.report import Report
    from emberge_standard.steps.stdlib_corpus import StdlibCorpus
    from emberge_standard.steps.train import Train

    return {
        "train": Train,
        "measure_statistics": MeasureStatistics,
        "merge": Merge,
        "merge_adapters": MergeAdapters,
        "extract_lora": ExtractLora,
        "evaluate": Evaluate,
        "report": Report,
        "stdlib_corpus": StdlibCorpus,
    }


@hookimpl
def register_readers() -> Mapping[str, type[Reader]]:
    from emberge_standard.readers.delimited import Delimited
    from emberge_standard.readers.json_lines import JsonLines
    from emberge_standard.readers.parquet import Parquet

    return {"json_lines": JsonLines, "parquet": Parquet, "delimited": Delimited}


@hookimpl
def register_launchers() -> Mapping[str, type[Launcher]]:
    from emberge_standard.launchers.local import Local

    return {"local": Local}
