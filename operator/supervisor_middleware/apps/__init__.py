"""Composition roots: the only place that constructs adapters and wires them. No decisions here."""
