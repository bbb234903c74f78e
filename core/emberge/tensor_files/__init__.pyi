"""Public names of tensor_files, each with the module that defines it."""

from .derived_tensor import DerivedTensor as DerivedTensor
from .derived_tensor import RowReader as RowReader
from .safetensors_header import PROVENANCE_KEY as PROVENANCE_KEY
from .safetensors_header import SHARD_BYTES as SHARD_BYTES
from .safetensors_header import WEIGHTS_FILE as WEIGHTS_FILE
from .safetensors_header import RemoteFile as RemoteFile
from .safetensors_header import TensorSpec as TensorSpec
from .safetensors_header import build_header_texts as build_header_texts
from .safetensors_header import encode_header as encode_header
from .safetensors_header import find_main_dtype as find_main_dtype
from .safetensors_header import read_header as read_header
from .safetensors_header import read_provenance as read_provenance
from .safetensors_header import read_versions as read_versions
from .server_file import SCHEMES as SCHEMES
from .server_file import ServerFile as ServerFile
from .tensor_fetcher import FetchedFile as FetchedFile
from .tensor_reader import FileSource as FileSource
from .tensor_reader import TensorReader as TensorReader
from .tensor_reader import TensorSource as TensorSource
from .tensor_reader import view_bytes as view_bytes
from .tensor_writer import TensorWriter as TensorWriter
from .write_queue import QUEUE_BYTES as QUEUE_BYTES
