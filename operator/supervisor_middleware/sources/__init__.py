"""Where objects come from: a folder of YAML, or a cluster. Both yield a `Snapshot` and take statuses back."""
