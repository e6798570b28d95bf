"""Who is who: the certificate authority, SPIFFE identities, credentials, join tokens, and where they are kept.

`spiffe`, `keys`, `bundles`, `credentials`, `authority` and `tokens` are PURE (time is an argument, randomness is an
argument or the key generation of `cryptography`); `files`, `credential_files` and `store` are the file edge.
Nothing here logs, and no private key reaches a repr, a message or a traceback.
"""
