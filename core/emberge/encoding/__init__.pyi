"""Public names of encoding, each with the module that defines it."""

from .chunk_runner import EncodePlan as EncodePlan
from .chunk_runner import PassResult as PassResult
from .chunk_runner import activation_budget as activation_budget
from .chunk_runner import saved_bytes as saved_bytes
from .chunks import to_device as to_device
from .embedder import TextEmbedder as TextEmbedder
from .embedder import default_token_budget as default_token_budget
from .forward_pass import device_of as device_of
from .forward_pass import draws_random_numbers as draws_random_numbers
from .forward_pass import forward as forward
from .forward_pass import token_states as token_states
from .gradient_cache import BatchEmbeddings as BatchEmbeddings
from .gradient_cache import encode_and_backward as encode_and_backward
from .packing import packing_problem as packing_problem
from .token_files import TEXTS_AT_ONCE as TEXTS_AT_ONCE
from .token_files import Ragged as Ragged
from .token_files import RaggedWriter as RaggedWriter
from .token_pass import TokenScores as TokenScores
from .token_pass import corrupted as corrupted
from .token_pass import predict_and_backward as predict_and_backward
from .token_pass import score_texts as score_texts
