"""Public names of endpoint, each with the module that defines it."""

from .endpoint_check import check_endpoint as check_endpoint
from .vector_server import VectorServer as VectorServer
