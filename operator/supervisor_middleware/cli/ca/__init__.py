"""`smw ca`: where the rotation of the root of identities stands, and asking for one."""
