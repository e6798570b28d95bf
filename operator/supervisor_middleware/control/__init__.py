"""The control plane's decisions: pure ones (acceptance, status, admission) and the reconciler that drives them."""
