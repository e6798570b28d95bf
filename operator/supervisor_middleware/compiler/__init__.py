"""The verbs. PURE: two functions decide everything, `compile_policy` and `compose`; four callers share them."""
