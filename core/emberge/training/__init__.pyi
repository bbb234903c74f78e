"""Public names of training, each with the module that defines it."""

from .batch_plan import BatchPlan as BatchPlan
from .batch_plan import PlannedBatch as PlannedBatch
from .batch_plan import PlannedPart as PlannedPart
from .example_table import TextSide as TextSide
from .example_table import build_table as build_table
from .fit_options import EarlyStopping as EarlyStopping
from .fit_options import FitJob as FitJob
from .fit_options import FitOptions as FitOptions
from .fit_options import FitResult as FitResult
from .fit_options import GuideRequest as GuideRequest
from .fit_options import ReadGuide as ReadGuide
from .fit_options import TextOptions as TextOptions
from .fit_options import resolve_negatives as resolve_negatives
from .loop.checkpoints import SaveClock as SaveClock
from .loop.checkpoints import TrainingState as TrainingState
from .loop.session import Session as Session
from .loop.session_opening import open_session as open_session
from .loop.trainer import fit as fit
from .loop.trainer import train as train
from .loss_problems import find_embedding_problems as find_embedding_problems
from .loss_problems import find_loss_problems as find_loss_problems
from .loss_problems import find_prediction_problems as find_prediction_problems
from .trainee import Trainee as Trainee
