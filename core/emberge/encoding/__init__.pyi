"""Public names of encoding, each with the module that defines it."""

from .chunk_runner import EncodePlan as EncodePlan
from .chunk_runner import PassResult as PassResult
from .chunk_runner import count_saved_bytes as count_saved_bytes
from .chunk_runner import measure_activation_budget as measure_activation_budget
from .chunk_runner import set_torch_seed as set_torch_seed
from .chunks import choose_token_budget as choose_token_budget
from .chunks import find_device as find_device
from .chunks import to_device as to_device
from .embedder import TextEmbedder as TextEmbedder
from .embedder import find_document_prompt as find_document_prompt
from .forward_pass import compute_token_states as compute_token_states
from .forward_pass import draws_random_numbers as draws_random_numbers
from .forward_pass import forward as forward
from .gradient_cache import BatchEmbeddings as BatchEmbeddings
from .gradient_cache import encode_and_backward as encode_and_backward
from .token_files import TEXTS_AT_ONCE as TEXTS_AT_ONCE
from .token_files import Ragged as Ragged
from .token_files import RaggedWriter as RaggedWriter
from .token_pass import TokenScores as TokenScores
from .token_pass import corrupt_text as corrupt_text
from .token_pass import find_packing_problem as find_packing_problem
from .token_pass import predict_and_backward as predict_and_backward
from .token_pass import score_texts as score_texts
