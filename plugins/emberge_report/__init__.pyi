"""Public names of emberge_report, each with the module that defines it."""

from .card import CardFacts as CardFacts
from .card import draw_card as draw_card
from .figures import read_figures as read_figures
from .model_facts import Anatomy as Anatomy
from .model_facts import anatomy as anatomy
from .report_step import Report as Report
