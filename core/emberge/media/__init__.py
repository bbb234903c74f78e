"""Files of images and clips: their facts and content, and the folder where bytes of rows are kept."""
