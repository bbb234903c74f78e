"""Parts of an encoder of images and clips in addition to texts."""
