"""The audit trail: what happened, in OCSF. Paths, keys and categories only; never content."""
