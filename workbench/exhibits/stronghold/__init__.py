"""The exhibits of STRONGHOLD (SC'22)."""
