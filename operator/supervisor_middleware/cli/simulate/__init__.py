"""`smw simulate`: a request through the chain, stage by stage."""
