"""A plan of `emberge adapt` and the facts of its data."""

from __future__ import annotations

from emberge_adapt import AdaptPlan, DataFacts, TrainingSettings

TRAINING = TrainingSettings(batch_size=32, max_length=64, epochs=2, learning_rate="5e-5")
PLAN = AdaptPlan(
    data_entry={"path": "pairs.csv"},
    model="./base",
    training=TRAINING,
    rows=2000,
    dev_rows=200,
    dev_units=200,
    row_documents=1500,
    test_rows=300,
)
FACTS = DataFacts(
    rows=2000,
    tasks=("retrieval",),
    sets=("pairs",),
    smallest_set=2000,
    queries=2000,
    documents=1500,
    has_negatives=False,
    query_tokens=18,
    document_tokens=121,
)
