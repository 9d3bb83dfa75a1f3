"""A job of the launcher whose hosts come and go as a trace says."""
