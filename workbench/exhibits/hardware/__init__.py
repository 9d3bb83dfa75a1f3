"""This project's own exhibits: what it measured on named hardware."""
