"""Public names of training, each with the module that defines it."""

from .fit_job import EarlyStopping as EarlyStopping
from .fit_job import FitJob as FitJob
from .fit_options import BatchOptions as BatchOptions
from .fit_options import FitOptions as FitOptions
from .fit_options import FitResult as FitResult
from .loop.checkpoints import latest_state as latest_state
from .loop.checkpoints import save_state as save_state
from .loop.fit import fit as fit
from .loop.session import SaveClock as SaveClock
from .loop.session import Session as Session
from .plan.preview import TrainingPreview as TrainingPreview
from .plan.preview import preview_training as preview_training
