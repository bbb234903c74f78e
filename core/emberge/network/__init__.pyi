"""Public names of network, each with the module that defines it."""

from .addresses import KINDS as KINDS
from .addresses import is_address as is_address
from .addresses import require_scheme as require_scheme
from .request_errors import UnreachableError as UnreachableError
from .request_errors import UnsoundAnswerError as UnsoundAnswerError
from .retries import call_again as call_again
from .retries import request_threads as request_threads
from .web_client import WebClient as WebClient
