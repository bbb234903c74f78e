"""Public names of network, each with the module that defines it."""

from .addresses import KINDS as KINDS
from .addresses import is_address as is_address
from .addresses import is_loopback as is_loopback
from .addresses import is_safe_for_secrets as is_safe_for_secrets
from .addresses import require_scheme as require_scheme
from .hub_requests import hub_client as hub_client
from .interruptible import Stop as Stop
from .interruptible import call_again as call_again
from .interruptible import call_within as call_within
from .interruptible import request_threads as request_threads
from .json_posts import PostAnswer as PostAnswer
from .json_posts import post_json as post_json
from .request_errors import UnreachableError as UnreachableError
from .request_errors import UnsoundAnswerError as UnsoundAnswerError
from .web_client import WebClient as WebClient
from .web_service import BusyServiceError as BusyServiceError
from .web_service import ServiceError as ServiceError
from .web_service import WebService as WebService
