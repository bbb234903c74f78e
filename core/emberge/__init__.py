"""emberge: the merge engine for embedding models.

Plugins and scripts import from here. Importing this module loads no torch; names that need it are loaded
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from emberge.contracts.backbone import (
    Auxiliary,
    Backbone,
    Embedded,
    Encoder,
    NamesWeights,
    TokenisedText,
)
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
from emberge.contracts.launcher import Crew, Ended, Launch, Launched, Launcher
from emberge.contracts.loss import Embeddings, Guide, Loss, TokenLoss, Tokens, loss_faults
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
from emberge.contracts.option import PerDataset, component, later
from emberge.contracts.sampler import (
    Batch,
    Batches,
    Negatives,
    Part,
    Pool,
    Rows,
    Sampler,
    Tail,
)
from emberge.contracts.schedule import Filtered, PerModel, PerTensor
from emberge.contracts.step import (
    Artifact,
    ArtifactKind,
    DataRef,
    Expected,
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
    from emberge.data.domains import in_domain_tasks
    from emberge.devices import (
        check_space,
        dtype_for,
        find_machine,
        human_size,
        memory_here,
        parse_size,
        torch_threads,
    )
    from emberge.merging.adapter_fit import adapter_problems
    from emberge.merging.adapter_origin import adapter_origin
    from emberge.merging.adapter_output import AdapterReport, merge_to_adapter
    from emberge.merging.adapter_products import Combination
    from emberge.merging.adapters import adapted_names
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
    from emberge.merging.whole_model import whole_model, whole_problems
    from emberge.plugins import Plugins, load_plugins
    from emberge.recipes.bags import rows_seen, write_bags
    from emberge.recipes.fingerprint import HashCache, model_fingerprint
    from emberge.recipes.grammar import load_recipe, parse_recipe
    from emberge.recipes.out import OutFolder, read_artifact
    from emberge.recipes.preflight import check_recipe
    from emberge.recipes.run import run_recipe
    from emberge.recipes.step_process import StepProcess
    from emberge.training.encode import TextEmbedder
    from emberge.training.fit import fit
    from emberge.training.lanes import Lane, cut_lanes
    from emberge.training.measure import Measured, Measurement, StoredTensors, measure_model
    from emberge.training.options import FitOptions, FitResult
    from emberge.training.orders import InOrder, InTurn, Shuffled
    from emberge.training.outlook import Outlook, outlook
    from emberge.training.permutation import Permutation
    from emberge.training.rows import Chosen, Drawn, take_rows
    from emberge.training.vectors import (
        blockwise,
        log_sum_products,
        lowest_score,
        unit_vectors,
    )
    from emberge.training.watch import Watch
    from emberge.yaml_aliases import alias_problem

_LAZY_NAMES = {
    "emberge.data.datasets": (
        "CheckedData check_entries first_examples load_catalogue load_datasets load_eval_set"
    ),
    "emberge.data.domains": "in_domain_tasks",
    "emberge.devices": (
        "check_space dtype_for find_machine human_size memory_here parse_size torch_threads"
    ),
    "emberge.merging.adapter_fit": "adapter_problems",
    "emberge.merging.adapter_origin": "adapter_origin",
    "emberge.merging.adapter_output": "AdapterReport merge_to_adapter",
    "emberge.merging.adapter_products": "Combination",
    "emberge.merging.adapters": "adapted_names",
    "emberge.merging.alignment": "canonical_names is_vocabulary layer_of prefix_of",
    "emberge.merging.buffers": "fresh pages",
    "emberge.merging.checkpoint": "Checkpoint TensorSpec",
    "emberge.merging.memory": "merge_state_dicts",
    "emberge.merging.merge": "MergeReport merge_checkpoints",
    "emberge.merging.new_vocabulary": "NewVocabulary",
    "emberge.merging.options": "stage_name",
    "emberge.merging.plan": "MergeInput MergePlan MergeRequest plan_merge",
    "emberge.merging.provenance": "plain_stage",
    "emberge.merging.reader": "TensorReader",
    "emberge.merging.slices": "MergeSlice",
    "emberge.merging.statistics": "Statistics join_statistics read_statistics write_statistics",
    "emberge.merging.stream": "CopyJob MergeJob TensorJob stream",
    "emberge.merging.truncation": "Truncation",
    "emberge.merging.vocabulary": "VocabularyPolicy",
    "emberge.merging.whole_model": "whole_model whole_problems",
    "emberge.plugins": "Plugins load_plugins",
    "emberge.recipes.bags": "rows_seen write_bags",
    "emberge.recipes.fingerprint": "HashCache model_fingerprint",
    "emberge.recipes.grammar": "load_recipe parse_recipe",
    "emberge.recipes.out": "OutFolder read_artifact",
    "emberge.recipes.preflight": "check_recipe",
    "emberge.recipes.run": "run_recipe",
    "emberge.recipes.step_process": "StepProcess",
    "emberge.training.encode": "TextEmbedder",
    "emberge.training.fit": "fit",
    "emberge.training.lanes": "Lane cut_lanes",
    "emberge.training.measure": "Measured Measurement StoredTensors measure_model",
    "emberge.training.options": "FitOptions FitResult",
    "emberge.training.orders": "InOrder InTurn Shuffled",
    "emberge.training.outlook": "Outlook outlook",
    "emberge.training.permutation": "Permutation",
    "emberge.training.rows": "Chosen Drawn take_rows",
    "emberge.training.vectors": "blockwise log_sum_products lowest_score unit_vectors",
    "emberge.training.watch": "Watch",
    "emberge.yaml_aliases": "alias_problem",
}
_LAZY = {name: module for module, names in _LAZY_NAMES.items() for name in names.split()}

__version__ = "0.1.0"

__all__ = [
    "TASK_KINDS",
    "AdapterReport",
    "Artifact",
    "ArtifactKind",
    "Auxiliary",
    "Backbone",
    "BadRow",
    "BasePolicy",
    "Batch",
    "Batches",
    "Block",
    "Catalogue",
    "ChainSpec",
    "CheckedData",
    "Checkpoint",
    "CheckpointError",
    "Chosen",
    "ClassificationData",
    "ClusteringData",
    "Columns",
    "Combination",
    "CopyJob",
    "Crew",
    "DataEntry",
    "DataError",
    "DataRef",
    "Dataset",
    "DatasetInfo",
    "Domain",
    "Drawn",
    "Embedded",
    "Embeddings",
    "EmbergeError",
    "Encoder",
    "Ended",
    "EvalData",
    "EvalSet",
    "Evaluator",
    "Example",
    "Expected",
    "FileRef",
    "Filtered",
    "FitOptions",
    "FitResult",
    "Guide",
    "HashCache",
    "InOrder",
    "InTurn",
    "Lane",
    "Launch",
    "Launched",
    "Launcher",
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
    "Outlook",
    "PairData",
    "Part",
    "PerDataset",
    "PerModel",
    "PerTensor",
    "Permutation",
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
    "Shuffled",
    "Stage",
    "Statistics",
    "Stats",
    "Step",
    "StepProcess",
    "StepRef",
    "StoredTensors",
    "Tail",
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
    "Watch",
    "WeightRole",
    "Workspace",
    "__version__",
    "adapted_names",
    "adapter_origin",
    "adapter_problems",
    "alias_problem",
    "blockwise",
    "canonical_names",
    "chain",
    "check_entries",
    "check_recipe",
    "check_space",
    "component",
    "cut_lanes",
    "dtype_for",
    "find_machine",
    "first_examples",
    "fit",
    "fresh",
    "hookimpl",
    "human_size",
    "in_domain_tasks",
    "is_vocabulary",
    "join_statistics",
    "later",
    "layer_of",
    "load_catalogue",
    "load_datasets",
    "load_eval_set",
    "load_plugins",
    "load_recipe",
    "log_sum_products",
    "loss_faults",
    "lowest_score",
    "measure_model",
    "memory_here",
    "merge_blocks",
    "merge_checkpoints",
    "merge_state_dicts",
    "merge_to_adapter",
    "model_fingerprint",
    "outlook",
    "pages",
    "parse_recipe",
    "parse_size",
    "plain_stage",
    "plan_merge",
    "prefix_of",
    "random_bits",
    "read_artifact",
    "read_statistics",
    "rows_seen",
    "run_recipe",
    "shuffled",
    "stable_seed",
    "stage_name",
    "stream",
    "suggest",
    "take_rows",
    "torch_threads",
    "unit_vectors",
    "whole_model",
    "whole_problems",
    "write_bags",
    "write_statistics",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'emberge' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)
