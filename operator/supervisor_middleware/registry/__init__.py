"""What the control plane knows of services: a client that asks, and a catalog of the answers."""
