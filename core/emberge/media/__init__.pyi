"""Public names of media, each with the module that defines it."""

from .image_files import decode_image as decode_image
from .image_files import image_size as image_size
from .image_files import open_image as open_image
from .image_files import read_image as read_image
from .image_files import upright_size as upright_size
from .media_folder import MediaFolder as MediaFolder
from .sound_files import decode_clip as decode_clip
from .sound_files import read_clip as read_clip
from .sound_files import resample_clip as resample_clip
