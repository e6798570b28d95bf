"""The nouns. PURE: plain frozen values and the grammars they are parsed with; no I/O, no clock, no logging."""
