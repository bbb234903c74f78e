"""Options of a search for weights."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Backbone, Count, ModelRef, Stage, Step, TextLength, WholeNumber, component

from emberge_weights.inputs.weight_sets import Metric, SetEntry


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Step):
    """Models, sets and limits of a search."""

    models: tuple[ModelRef, ...]
    """The models to merge."""
    base: ModelRef | None = None
    """Their common ancestor, a member that may have a weight."""
    data: tuple[SetEntry, ...]
    """Evaluation sets to choose by, of which `dev` halves are taken."""
    elsewhere: tuple[SetEntry, ...] = ()
    """Sets of other domains: what each weighting gains in `data` is shown beside what it loses here."""
    tests: tuple[SetEntry, ...] = ()
    """Sets that the result will be reported on, which `data` must not share queries with."""
    metric: Metric = "task"
    candidates: Count = 1000
    """Weightings to look at."""
    anchors: WholeNumber = 5
    """Weightings to merge for real, equal weights among them; what is foretold is corrected by these."""
    trials: WholeNumber = 0
    """Random weightings to merge for real too, which show how well scores are foretold.

    The table has the rank correlation of foretold and real scores, and on `tests` the choice beside the best
    of the trials: what a sweep of so many merges would have found."""
    layers: bool = False
    """Weights by layer, fitted by gradients, where they are better than one for all layers."""
    prompt: str | None = None
    """Text before queries, in which `{instruction}` and `{prompt}` are the set's, or else the models' own."""
    max_length: TextLength | None = None
    """Tokens of a text at most; by default what the models read."""
    backbone: Backbone = component("text_encoder")
    """Reading of the checkpoints."""
    strategy: Stage = component("linear")
    """Mean of weights by which members are merged."""
    seed: WholeNumber | None = None
    """Seed of candidates and halves; by default the recipe's."""
