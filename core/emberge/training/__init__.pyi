"""Public names of training, each with the module that defines it."""

from .fit_options import BatchOptions as BatchOptions
from .fit_options import EarlyStopping as EarlyStopping
from .fit_options import FitJob as FitJob
from .fit_options import FitOptions as FitOptions
from .fit_options import FitResult as FitResult
from .fit_options import choose_negatives as choose_negatives
from .loop.checkpoints import SaveClock as SaveClock
from .loop.checkpoints import latest_state as latest_state
from .loop.checkpoints import save_state as save_state
from .loop.fit import fit as fit
from .loop.fit import train as train
from .loop.metrics import TrainingError as TrainingError
from .loop.session import Session as Session
from .loop.session_opening import open_session as open_session
from .plan.batch_plan import PlannedBatch as PlannedBatch
from .plan.batch_plan import PlannedPart as PlannedPart
from .plan.batch_sequences import DatasetBatches as DatasetBatches
from .plan.batch_sequences import InOrder as InOrder
from .plan.batch_sequences import Shuffled as Shuffled
from .plan.batch_sequences import batches_by_dataset as batches_by_dataset
from .plan.batch_sequences import take_rows as take_rows
from .plan.preview import TrainingPreview as TrainingPreview
from .plan.preview import preview_training as preview_training
from .trainee import Trainee as Trainee
