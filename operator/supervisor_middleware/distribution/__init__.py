"""Hands generations to supervisors: a pure ledger of who runs what, and the gRPC servers around it."""
