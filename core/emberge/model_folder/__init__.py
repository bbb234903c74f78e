"""Model folders: configs, layouts, tensor names, and the files beside the weights."""
