"""Public names of emberge_report, each with the module that defines it."""

from .card import CardFacts as CardFacts
from .card import draw_card as draw_card
from .card_scores import add_scores as add_scores
from .figures import read_figures as read_figures
from .front_matter import read_front_matter as read_front_matter
from .front_matter import split_card as split_card
from .front_matter import stated_licence as stated_licence
from .lineage import Parent as Parent
from .lineage import ancestry as ancestry
from .markdown import NAME_REMARK as NAME_REMARK
from .markdown import code_block as code_block
from .markdown import code_span as code_span
from .model_facts import Anatomy as Anatomy
from .model_facts import anatomy as anatomy
from .report_step import Report as Report
