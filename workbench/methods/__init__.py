"""Methods: planners that emit schedules. The table of methods is table.toml."""
