"""Forms of output that several commands share."""
