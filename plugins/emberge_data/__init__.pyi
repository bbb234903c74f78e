"""Public names of emberge_data, each with the module that defines it."""

from .delimited import Delimited as Delimited
from .documents.cutting import cut_document as cut_document
from .documents.document_files import read_documents as read_documents
from .json_lines import JsonLines as JsonLines
from .parquet import Parquet as Parquet
from .steps.mine_hard_negatives import read_corpora as read_corpora
