"""The collectives on arrays: operands, registered memory, handles, all-reduce and the others."""
