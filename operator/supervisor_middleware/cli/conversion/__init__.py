"""Between OpenShell's own files (gateway TOML, policy YAML) and our resources. PURE; the edge is `command.py`."""
