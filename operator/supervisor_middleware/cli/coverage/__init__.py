"""`smw coverage`: which endpoints no middleware looks at."""
