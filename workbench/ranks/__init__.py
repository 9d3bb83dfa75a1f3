"""What all methods on several ranks share: who is watched, how long, and whose failure counts."""
