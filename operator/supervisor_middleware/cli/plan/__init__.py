"""`smw plan`: what a change to policies does."""
