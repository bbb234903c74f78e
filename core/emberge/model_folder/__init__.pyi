"""Public names of model_folder, each with the module that defines it."""

from .checkpoint import Checkpoint as Checkpoint
from .checkpoint import describe_other_format as describe_other_format
from .compare_models import JoinedFacts as JoinedFacts
from .compare_models import ModelPair as ModelPair
from .folder_files import find_model_name as find_model_name
from .folder_files import read_object as read_object
from .folder_files import read_object_if_any as read_object_if_any
from .folder_files import read_text as read_text
from .model_config import TextLimit as TextLimit
from .model_config import TrunkConfig as TrunkConfig
from .model_files import copy_model as copy_model
from .model_files import copy_template as copy_template
from .model_files import describe_origin as describe_origin
from .model_files import find_class_code as find_class_code
from .model_files import hash_model as hash_model
from .model_files import list_hashed_files as list_hashed_files
from .model_files import list_published_files as list_published_files
from .st_layout import POOLING as POOLING
from .st_layout import ModuleFolder as ModuleFolder
from .st_layout import find_trunk_settings as find_trunk_settings
from .st_layout import read_pooling_modes as read_pooling_modes
from .st_layout import read_router_config as read_router_config
from .st_layout import read_settings as read_settings
from .st_layout import read_trunk_settings as read_trunk_settings
from .tokenizers import TokenizerFiles as TokenizerFiles
