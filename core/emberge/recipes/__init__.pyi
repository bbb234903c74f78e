"""Public names of recipes, each with the module that defines it."""

from .checked_run import run_recipe as run_recipe
from .checks.preflight import CheckReport as CheckReport
from .checks.preflight import check_recipe as check_recipe
from .checks.status import results_shown as results_shown
from .checks.status import run_summary as run_summary
from .checks.status import status as status
from .checks.verify import verify_result as verify_result
from .docs.component_table import list_components as list_components
from .docs.describe import describe_component as describe_component
from .docs.json_schema import recipe_schema as recipe_schema
from .docs.new_plugin import write_plugin as write_plugin
from .one_merge import describe_merge as describe_merge
from .one_merge import read_merge_file as read_merge_file
from .one_merge import run_one_merge as run_one_merge
from .parse.parse import load_recipe as load_recipe
from .parse.parse import read_text as read_text
from .parse.parse import translate as translate
from .parse.shipped import named_recipe as named_recipe
from .parse.shipped import shipped_recipes as shipped_recipes
from .recipe import Recipe as Recipe
from .references import is_folder as is_folder
from .references import locate_model as locate_model
from .references import name_here as name_here
from .run.rank_team import form_team as form_team
from .run.recipe_run import StepsFailedError as StepsFailedError
