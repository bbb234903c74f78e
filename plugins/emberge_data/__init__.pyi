"""Public names of emberge_data, each with the module that defines it."""

from .delimited import Delimited as Delimited
from .document_rows import read_document_rows as read_document_rows
from .documents.cutting import cut_document as cut_document
from .documents.document_files import read_documents as read_documents
from .documents.python_code import parse_source as parse_source
from .documents.python_code import take_first_paragraph as take_first_paragraph
from .evaluation.eval_set import ClassificationData as ClassificationData
from .evaluation.eval_set import ClusteringData as ClusteringData
from .evaluation.eval_set import EvalData as EvalData
from .evaluation.eval_set import EvalSet as EvalSet
from .evaluation.eval_set import PairData as PairData
from .evaluation.eval_set import RerankingData as RerankingData
from .evaluation.eval_set import RetrievalData as RetrievalData
from .evaluation.eval_set import list_eval_texts as list_eval_texts
from .evaluation.pick_eval_sets import EvalSource as EvalSource
from .evaluation.pick_eval_sets import check_eval_sets as check_eval_sets
from .evaluation.pick_eval_sets import pick_eval_sets as pick_eval_sets
from .evaluation.read_eval_sets import load_eval_set as load_eval_set
from .json_lines import JsonLines as JsonLines
from .json_lines import open_data_file as open_data_file
from .parquet import Parquet as Parquet
from .steps.row_texts import DistinctTexts as DistinctTexts
from .written_sets import write_catalogue as write_catalogue
from .written_sets import write_entries as write_entries
from .written_sets import write_json_rows as write_json_rows
