"""Public names of emberge_report, each with the module that defines it."""

from .card.card import CardFacts as CardFacts
from .card.card import model_card as model_card
from .charts.markup import tag as tag
from .model_facts import Anatomy as Anatomy
from .model_facts import anatomy as anatomy
from .page.figure_data import figure_data as figure_data
from .page.figures import read_figures as read_figures
from .report_step import Report as Report
