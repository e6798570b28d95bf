"""`smw explain`: what happens to requests to a host."""
