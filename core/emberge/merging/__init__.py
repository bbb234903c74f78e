"""The tensor-streaming runner: jobs in, a checkpoint out."""
