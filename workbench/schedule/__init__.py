"""Schedules as data: actions, validation, simulation, drawing, traces. Imports no torch."""

from workbench.schedule.action import Action, Kind, format_name, parse_name
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import Buffer, Schedule
from workbench.schedule.simulate import Costs, Event, Simulation, memory_timeline, simulate
from workbench.schedule.validate import Validation, validate

__all__ = [
    "Action",
    "Buffer",
    "Costs",
    "Event",
    "Kind",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Validation",
    "format_name",
    "memory_timeline",
    "parse_name",
    "simulate",
    "validate",
]
