"""Public names of files, each with the module that defines it."""

from .atomic import FileLock as FileLock
from .atomic import build_side_name as build_side_name
from .atomic import clear_torn as clear_torn
from .atomic import fill_once as fill_once
from .atomic import link_or_copy as link_or_copy
from .atomic import publish as publish
from .atomic import replace_file as replace_file
from .atomic import replace_folder as replace_folder
from .atomic import replace_link as replace_link
from .atomic import working_in as working_in
from .atomic import write_json as write_json
from .atomic import write_text as write_text
from .disk import announce as announce
from .disk import find_user_cache as find_user_cache
from .disk import make_folder as make_folder
from .disk import require_space as require_space
from .disk import sync as sync
from .disk import sync_tree as sync_tree
from .disk import writing as writing
from .strangers import JSON_LIMIT as JSON_LIMIT
from .strangers import open_regular as open_regular
from .strangers import read_json as read_json
from .strangers import read_regular as read_regular
from .strangers import require_inside as require_inside
from .strangers import require_regular as require_regular
