"""`smw capabilities`: what this release bounds, inspects and leaves out."""
