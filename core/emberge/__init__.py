"""emberge: the merge engine for embedding models.

Plugins and scripts import from here. Importing this module loads no torch; names that need it are loaded
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from emberge.contracts.backbone import Backbone, Embedded, Encoder, NamesWeights, TokenisedText
from emberge.contracts.block import Block, Options
from emberge.contracts.chain import Rule, merge_blocks
from emberge.contracts.dataset import (
    TASK_KINDS,
    BadRow,
    Dataset,
    DatasetInfo,
    Domain,
    Example,
    Reader,
    TaskKind,
)
from emberge.contracts.evaluator import Evaluator, TaskInfo, TaskScore, Units
from emberge.contracts.loss import Embeddings, Guide, Loss, TokenLoss, Tokens
from emberge.contracts.merge import (
    BasePolicy,
    ChainSpec,
    Measures,
    MergeStrategy,
    MergeTransform,
    Scope,
    Stage,
    Stats,
    WeightRole,
    chain,
)
from emberge.contracts.option import PerDataset, component
from emberge.contracts.sampler import Batch, Negatives, Part, Pool, Rows, Sampler
from emberge.contracts.schedule import Filtered, PerModel, PerTensor
from emberge.contracts.step import (
    Artifact,
    ArtifactKind,
    DataRef,
    FileRef,
    Machine,
    Model,
    ModelRef,
    Preflight,
    Reference,
    Rehearsal,
    Step,
    StepRef,
    Workspace,
)
from emberge.contracts.translated import TranslatedRecipe
from emberge.data.entry import Catalogue, Columns, DataEntry, EvalSet
from emberge.data.eval_data import (
    ClassificationData,
    ClusteringData,
    EvalData,
    PairData,
    RerankingData,
    RetrievalData,
)
from emberge.errors import (
    CheckpointError,
    DataError,
    EmbergeError,
    PluginError,
    Problem,
    RecipeError,
    RequirementError,
    suggest,
)
from emberge.hookspecs import hookimpl
from emberge.seeds import random_bits, shuffled, stable_seed

if TYPE_CHECKING:
    from emberge.data.datasets import (
        CheckedData,
        check_entries,
        first_examples,
        load_catalogue,
        load_datasets,
        load_eval_set,
    )
    from emberge.devices import (
        check_space,
        dtype_for,
        find_machine,
        human_size,
        torch_threads,
    )
    from emberge.merging.adapter_fit import adapter_problems
    from emberge.merging.adapter_output import AdapterReport, merge_to_adapter
    from emberge.merging.adapter_products import Combination
    from emberge.merging.alignment import canonical_names, is_vocabulary, layer_of, prefix_of
    from emberge.merging.buffers import fresh, pages
    from emberge.merging.checkpoint import Checkpoint, TensorSpec
    from emberge.merging.memory import merge_state_dicts
    from emberge.merging.merge import MergeReport, merge_checkpoints
    from emberge.merging.new_vocabulary import NewVocabulary
    from emberge.merging.options import stage_name
    from emberge.merging.plan import MergeInput, MergePlan, MergeRequest, plan_merge
    from emberge.merging.provenance import plain_stage
    from emberge.merging.reader import TensorReader
    from emberge.merging.slices import MergeSlice
    from emberge.merging.statistics import (
        Statistics,
        join_statistics,
        read_statistics,
        write_statistics,
    )
    from emberge.merging.stream import CopyJob, MergeJob, TensorJob, stream
    from emberge.merging.truncation import Truncation
    from emberge.merging.vocabulary import VocabularyPolicy
    from emberge.plugins import Plugins, load_plugins
    from emberge.recipes.fingerprint import HashCache, model_fingerprint
    from emberge.recipes.grammar import load_recipe, parse_recipe
    from emberge.recipes.out import OutFolder, read_artifact
    from emberge.recipes.preflight import check_recipe
    from emberge.recipes.run import run_recipe
    from emberge.training.encode import TextEmbedder
    from emberge.training.fit import fit
    from emberge.training.measure import Measured, Measurement, StoredTensors, measure_model
    from emberge.training.options import FitOptions, FitResult
    from emberge.training.outlook import outlook
    from emberge.training.vectors import (
        blockwise,
        log_sum_products,
        lowest_score,
        unit_vectors,
    )

_LAZY = {
    "check_space": "emberge.devices",
    "dtype_for": "emberge.devices",
    "find_machine": "emberge.devices",
    "human_size": "emberge.devices",
    "torch_threads": "emberge.devices",
    "adapter_problems": "emberge.merging.adapter_fit",
    "AdapterReport": "emberge.merging.adapter_output",
    "merge_to_adapter": "emberge.merging.adapter_output",
    "Combination": "emberge.merging.adapter_products",
    "canonical_names": "emberge.merging.alignment",
    "is_vocabulary": "emberge.merging.alignment",
    "layer_of": "emberge.merging.alignment",
    "prefix_of": "emberge.merging.alignment",
    "fresh": "emberge.merging.buffers",
    "pages": "emberge.merging.buffers",
    "Checkpoint": "emberge.merging.checkpoint",
    "TensorSpec": "emberge.merging.checkpoint",
    "merge_state_dicts": "emberge.merging.memory",
    "MergeReport": "emberge.merging.merge",
    "merge_checkpoints": "emberge.merging.merge",
    "NewVocabulary": "emberge.merging.new_vocabulary",
    "stage_name": "emberge.merging.options",
    "MergeInput": "emberge.merging.plan",
    "MergePlan": "emberge.merging.plan",
    "MergeRequest": "emberge.merging.plan",
    "plain_stage": "emberge.merging.provenance",
    "plan_merge": "emberge.merging.plan",
    "TensorReader": "emberge.merging.reader",
    "MergeSlice": "emberge.merging.slices",
    "Statistics": "emberge.merging.statistics",
    "join_statistics": "emberge.merging.statistics",
    "read_statistics": "emberge.merging.statistics",
    "write_statistics": "emberge.merging.statistics",
    "CopyJob": "emberge.merging.stream",
    "MergeJob": "emberge.merging.stream",
    "TensorJob": "emberge.merging.stream",
    "stream": "emberge.merging.stream",
    "Truncation": "emberge.merging.truncation",
    "VocabularyPolicy": "emberge.merging.vocabulary",
    "Plugins": "emberge.plugins",
    "load_plugins": "emberge.plugins",
    "TextEmbedder": "emberge.training.encode",
    "Measured": "emberge.training.measure",
    "Measurement": "emberge.training.measure",
    "StoredTensors": "emberge.training.measure",
    "measure_model": "emberge.training.measure",
    "FitOptions": "emberge.training.options",
    "FitResult": "emberge.training.options",
    "fit": "emberge.training.fit",
    "outlook": "emberge.training.outlook",
    "blockwise": "emberge.training.vectors",
    "log_sum_products": "emberge.training.vectors",
    "lowest_score": "emberge.training.vectors",
    "unit_vectors": "emberge.training.vectors",
    "load_catalogue": "emberge.data.datasets",
    "load_datasets": "emberge.data.datasets",
    "load_eval_set": "emberge.data.datasets",
    "check_entries": "emberge.data.datasets",
    "CheckedData": "emberge.data.datasets",
    "first_examples": "emberge.data.datasets",
    "HashCache": "emberge.recipes.fingerprint",
    "model_fingerprint": "emberge.recipes.fingerprint",
    "OutFolder": "emberge.recipes.out",
    "read_artifact": "emberge.recipes.out",
    "load_recipe": "emberge.recipes.grammar",
    "parse_recipe": "emberge.recipes.grammar",
    "check_recipe": "emberge.recipes.preflight",
    "run_recipe": "emberge.recipes.run",
}

__version__ = "0.1.0"

__all__ = [
    "TASK_KINDS",
    "AdapterReport",
    "Artifact",
    "ArtifactKind",
    "Backbone",
    "BadRow",
    "BasePolicy",
    "Batch",
    "Block",
    "Catalogue",
    "ChainSpec",
    "CheckedData",
    "Checkpoint",
    "CheckpointError",
    "ClassificationData",
    "ClusteringData",
    "Columns",
    "Combination",
    "CopyJob",
    "DataEntry",
    "DataError",
    "DataRef",
    "Dataset",
    "DatasetInfo",
    "Domain",
    "Embedded",
    "Embeddings",
    "EmbergeError",
    "Encoder",
    "EvalData",
    "EvalSet",
    "Evaluator",
    "Example",
    "FileRef",
    "Filtered",
    "FitOptions",
    "FitResult",
    "Guide",
    "HashCache",
    "Loss",
    "Machine",
    "Measured",
    "Measurement",
    "Measures",
    "MergeInput",
    "MergeJob",
    "MergePlan",
    "MergeReport",
    "MergeRequest",
    "MergeSlice",
    "MergeStrategy",
    "MergeTransform",
    "Model",
    "ModelRef",
    "NamesWeights",
    "Negatives",
    "NewVocabulary",
    "Options",
    "OutFolder",
    "PairData",
    "Part",
    "PerDataset",
    "PerModel",
    "PerTensor",
    "PluginError",
    "Plugins",
    "Pool",
    "Preflight",
    "Problem",
    "Reader",
    "RecipeError",
    "Reference",
    "Rehearsal",
    "RequirementError",
    "RerankingData",
    "RetrievalData",
    "Rows",
    "Rule",
    "Sampler",
    "Scope",
    "Stage",
    "Statistics",
    "Stats",
    "Step",
    "StepRef",
    "StoredTensors",
    "TaskInfo",
    "TaskKind",
    "TaskScore",
    "TensorJob",
    "TensorReader",
    "TensorSpec",
    "TextEmbedder",
    "TokenLoss",
    "TokenisedText",
    "Tokens",
    "TranslatedRecipe",
    "Truncation",
    "Units",
    "VocabularyPolicy",
    "WeightRole",
    "Workspace",
    "__version__",
    "adapter_problems",
    "blockwise",
    "canonical_names",
    "chain",
    "check_entries",
    "check_recipe",
    "check_space",
    "component",
    "dtype_for",
    "find_machine",
    "first_examples",
    "fit",
    "fresh",
    "hookimpl",
    "human_size",
    "is_vocabulary",
    "join_statistics",
    "layer_of",
    "load_catalogue",
    "load_datasets",
    "load_eval_set",
    "load_plugins",
    "load_recipe",
    "log_sum_products",
    "lowest_score",
    "measure_model",
    "merge_blocks",
    "merge_checkpoints",
    "merge_state_dicts",
    "merge_to_adapter",
    "model_fingerprint",
    "outlook",
    "pages",
    "parse_recipe",
    "plain_stage",
    "plan_merge",
    "prefix_of",
    "random_bits",
    "read_artifact",
    "read_statistics",
    "run_recipe",
    "shuffled",
    "stable_seed",
    "stage_name",
    "stream",
    "suggest",
    "torch_threads",
    "unit_vectors",
    "write_statistics",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'emberge' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)
