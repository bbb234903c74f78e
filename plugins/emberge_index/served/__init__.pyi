"""Public names of served, each with the module that defines it."""

from .endpoint_check import check_endpoint as check_endpoint
from .stored_rows import check_stored as check_stored
from .vector_server import VectorServer as VectorServer
