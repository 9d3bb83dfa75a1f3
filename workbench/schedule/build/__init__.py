"""Tools that builders of schedules share: what is written, and where it lies in memory."""
