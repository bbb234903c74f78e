"""Public names of results, each with the module that defines it."""

from .clean import find_leftovers as find_leftovers
from .clean import remove_leftovers as remove_leftovers
from .run_folder import ARTIFACT as ARTIFACT
from .run_folder import PROGRESS as PROGRESS
from .run_folder import Input as Input
from .run_folder import NoRunError as NoRunError
from .run_folder import OutFolder as OutFolder
from .run_folder import artifact_record as artifact_record
from .run_folder import measure_folder as measure_folder
from .run_folder import read_artifact as read_artifact
from .run_folder import read_record as read_record
from .run_folder import require_sound_result as require_sound_result
from .run_folder import results_in as results_in
from .run_folder import verify_result as verify_result
