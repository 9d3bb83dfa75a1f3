"""Runs: specs, records, the store, workers, sweeps, and parsers of other people's logs."""
