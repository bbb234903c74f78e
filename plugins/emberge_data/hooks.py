"""Training data: readers of its files, and steps that filter, mine and score it."""

from __future__ import annotations

from emberge import make_hook

register_readers = make_hook(
    json_lines="emberge_data.json_lines:JsonLines",
    parquet="emberge_data.parquet:Parquet",
    delimited="emberge_data.delimited:Delimited",
)
register_steps = make_hook(
    consistency_filter="emberge_data.steps.consistency_filter_step:ConsistencyFilter",
    decontaminate="emberge_data.steps.decontaminate_step:Decontaminate",
    deduplicate="emberge_data.steps.deduplicate_step:Deduplicate",
    filter_negatives="emberge_data.steps.filter_negatives_step:FilterNegatives",
    generate_queries="emberge_data.steps.generate_step:GenerateQueries",
    mine_hard_negatives="emberge_data.steps.mine_hard_negatives_step:MineHardNegatives",
    score_pairs="emberge_data.steps.score_pairs_step:ScorePairs",
    split="emberge_data.steps.split_step:Split",
)
