"""Supervisor middleware (OpenShell RFC 0009) as a Kubernetes citizen."""
