"""The data plane: enrols, keeps a known-good generation, runs the chain for Envoy. Knows no cluster."""
