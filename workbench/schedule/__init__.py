"""Schedules as data: actions, validation, simulation, drawing, traces. Imports no torch."""

from workbench.schedule.action import Action, Kind, format_name, parse_name
from workbench.schedule.schedule import Buffer, Schedule

__all__ = ["Action", "Buffer", "Kind", "Schedule", "format_name", "parse_name"]
