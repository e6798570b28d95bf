"""`smw status`: registrations, policies, and who runs what."""
