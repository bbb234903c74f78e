"""Public names of emberge_report, each with the module that defines it."""

from .card_scores import add_scores as add_scores
from .markdown import MODEL_NAME_COMMENT as MODEL_NAME_COMMENT
from .markdown import read_front_matter as read_front_matter
from .markdown import read_licence as read_licence
from .markdown import split_card as split_card
from .markdown import write_code_block as write_code_block
from .markdown import write_code_span as write_code_span
from .report_step import Report as Report
