"""Public names of emberge_publish, each with the module that defines it."""

from .ancestors import Ancestors as Ancestors
from .credentials import hide_credentials as hide_credentials
from .credentials import require_no_credentials as require_no_credentials
from .licences import Terms as Terms
from .publication import Publication as Publication
