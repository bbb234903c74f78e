"""Public names of data, each with the module that defines it."""

from .catalogue import EVAL_PATH_NAMES as EVAL_PATH_NAMES
from .catalogue import HELD_OUT_PARTS as HELD_OUT_PARTS
from .catalogue import build_instruction_prompt as build_instruction_prompt
from .catalogue import build_set as build_set
from .catalogue import list_held_out_sets as list_held_out_sets
from .catalogue import load_catalogue as load_catalogue
from .catalogue import pick_training_sets as pick_training_sets
from .columns import fold_headings as fold_headings
from .data_check import CheckedData as CheckedData
from .data_check import check_datasets as check_datasets
from .data_check import check_entries as check_entries
from .data_sources import DataSource as DataSource
from .data_sources import find_reader as find_reader
from .data_sources import list_sources as list_sources
from .dataset_loading import list_texts as list_texts
from .dataset_loading import load_datasets as load_datasets
from .dataset_loading import load_step_datasets as load_step_datasets
from .dataset_loading import read_examples as read_examples
from .dataset_loading import read_task as read_task
from .dataset_store import StoredDataset as StoredDataset
from .dataset_store import sample_rows as sample_rows
from .entry import DataEntry as DataEntry
from .entry import ListedEvalSet as ListedEvalSet
from .file_summary import RowProblems as RowProblems
from .media_values import MediaValues as MediaValues
