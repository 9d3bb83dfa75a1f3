"""What this machine can do, and what a model costs on it."""
