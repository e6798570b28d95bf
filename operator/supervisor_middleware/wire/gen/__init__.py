"""Generated from wire/proto by `make generate`; not edited by hand."""
