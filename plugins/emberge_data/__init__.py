"""Training data: readers of its files, and steps that filter, mine and score it."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Reader, Step, hookimpl


@hookimpl
def register_readers() -> Mapping[str, type[Reader]]:
    from emberge_data.delimited import Delimited
    from emberge_data.json_lines import JsonLines
    from emberge_data.parquet import Parquet

    return {"json_lines": JsonLines, "parquet": Parquet, "delimited": Delimited}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_data.steps.consistency_filter import ConsistencyFilter
    from emberge_data.steps.decontaminate.decontaminate_step import Decontaminate
    from emberge_data.steps.deduplicate.deduplicate_step import Deduplicate
    from emberge_data.steps.filter_negatives import FilterNegatives
    from emberge_data.steps.mine_hard_negatives import MineHardNegatives
    from emberge_data.steps.scoring.score_pairs import ScorePairs
    from emberge_data.steps.split.split_step import Split

    return {
        "consistency_filter": ConsistencyFilter,
        "decontaminate": Decontaminate,
        "deduplicate": Deduplicate,
        "filter_negatives": FilterNegatives,
        "mine_hard_negatives": MineHardNegatives,
        "score_pairs": ScorePairs,
        "split": Split,
    }
