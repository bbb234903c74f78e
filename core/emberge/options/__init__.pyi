"""Public names of options, each with the module that defines it."""

from .builder import BROKEN as BROKEN
from .builder import Builder as Builder
from .builder import OptionPath as OptionPath
from .builder import StepInstance as StepInstance
from .component_pages import describe_component as describe_component
from .component_pages import list_components as list_components
from .components import build_component as build_component
from .components import read_component as read_component
from .components import read_record as read_record
from .forms import read_options as read_options
from .option_docs import document_options as document_options
from .option_docs import write_value as write_value
from .option_schemas import SchemaWriter as SchemaWriter
