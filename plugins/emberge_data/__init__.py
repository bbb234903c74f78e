"""Readers of data files, and steps that make better training data of training data."""

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
    from emberge_data.steps.decontaminate.decontaminate_step import Decontaminate
    from emberge_data.steps.deduplicate.deduplicate_step import Deduplicate
    from emberge_data.steps.split.split_step import Split

    return {"deduplicate": Deduplicate, "decontaminate": Decontaminate, "split": Split}
