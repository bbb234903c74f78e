"""Plans of merges from headers and configs: tensors matched, weights resolved, problems found."""
