"""Public names of results, each with the module that defines it."""

from .artifact_file import ARTIFACT as ARTIFACT
from .artifact_file import Input as Input
from .artifact_file import build_artifact_record as build_artifact_record
from .artifact_file import find_adapted_base as find_adapted_base
from .artifact_file import read_artifact as read_artifact
from .artifact_file import read_record as read_record
from .leftovers import find_leftovers as find_leftovers
from .leftovers import remove_leftovers as remove_leftovers
from .run_folder import PROGRESS as PROGRESS
from .run_folder import NoRunError as NoRunError
from .run_folder import OutFolder as OutFolder
from .run_folder import list_current_results as list_current_results
from .run_folder import measure_folder as measure_folder
from .verification import require_sound_result as require_sound_result
from .verification import require_sound_weights as require_sound_weights
from .verification import verify_result as verify_result
