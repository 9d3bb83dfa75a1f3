"""Sentences and tables of text for the planner's replies. Nothing here is HTML yet."""

from __future__ import annotations

from typing import Any

from workbench.core.bytesize import format_bytes
from workbench.core.readable import parameters
from workbench.schedule.plan import CLIPPED
from workbench.ui.planner.control import ANY, Reply, Row

BASES = {
    "measured": "Predicted from measurements of this machine ({})",
    "estimated": "Memory is this machine's ({}), times are estimates",
    "unmeasured": "Memory is this machine's ({})",
    "published": "Predicted from published constants of {}",
    "datasheet": "Predicted from the datasheet of {}",
    "benchmark": "Predicted from this project's measurements of {}",
    "file": "Predicted from the file of {}",
}
"""Origin of a reply's costs -> the sentence on it."""
TIERS = {"device": "device memory", "host": "host memory", "disk": "disk"}


def headline(reply: Reply) -> str:
    """Whether it fits, with what, and how fast; or what went wrong. A machine that is not this one
    is named first."""
    row = reply.row
    if reply.problem:
        return _sentence(reply.problem)
    if row is None:
        return "Planning ..."
    where = "" if reply.here else f"On {reply.hardware}, which is not this machine: "
    return where + _answer(reply, row)


def _answer(reply: Reply, row: Row) -> str:
    layers = reply.question.spec.model.layers
    model = f"{_count(layers, 'layer')}, {parameters(reply.parameters)}"
    if row.fits:
        best = f"Fastest that fits: {row.label}"
        if not row.step_seconds:
            best = f"No times are known. Of methods that fit, {row.label} moves the fewest bytes"
        who = best if reply.question.method == ANY else f"{row.label} fits"
        return f"{who}. {model}{' at ' * bool(speed(row))}{speed(row)}."
    who = f"{row.label} does not fit" if reply.question.method != ANY else "No method fits"
    return f"{who} with {model}: {_sentence(row.binding)}"


def state(reply: Reply) -> str:
    """A sentence on the work that still goes on; empty when none does."""
    if reply.problem or reply.done:
        return ""
    if reply.refining:
        return "refining ..."
    return "comparing the other methods ..."


def speed(row: Row) -> str:
    """Samples a second and the time of a step; empty where unknown."""
    if row.step_seconds is None or not row.fits:
        return ""
    words = f"{row.samples_per_second:.3g} samples/s, {row.step_seconds:.3g} s a step"
    clipped = row.settings.get(CLIPPED)  # seconds of a step whose gradients are clipped
    if clipped and clipped > 1.01 * row.step_seconds:
        words += f" ({clipped:.3g} s where gradients are clipped)"
    return words


def settings(row: Row, layers: int) -> str:
    """Layers that stay, visit, stream, and wait on the disk; and where activations go."""
    chosen = row.settings
    if not row.fits or chosen.get("pulled_layers") is None:
        return ""
    stay, visit = chosen["resident"] or 0, chosen["pulled_layers"]
    disk, kept = chosen.get("disk_layers") or 0, chosen.get("kept_layers") or 0
    streamed = layers - stay - visit
    parts = []
    if stay == layers:
        parts.append(f"all {layers} layers stay on the device")
    elif stay:
        parts.append(f"on the device for good, with optimizer states: {_count(stay, 'layer')}")
    if visit:
        parts.append(f"on the device, while optimizer states come and go: {visit}")
    if streamed:
        slots = chosen.get("slots") or chosen.get("window")
        parts.append(f"streamed through a window of {slots}: {streamed}")
    if disk:
        parts.append(f"of these with optimizer states on the disk: {disk}")
    rest = "wait on the host" if chosen.get("stashed_inputs") else "are recomputed"
    if kept == layers:
        parts.append("all activations are kept")
    elif kept:
        last = "the last layer keeps" if kept == 1 else f"the last {kept} layers keep"
        parts.append(f"{last} activations, those of others {rest}")
    else:
        what = "inputs of layers" if chosen.get("stashed_inputs") else "activations"
        parts.append(f"{what} {rest}")
    return _sentence("; ".join(parts))


def bound(row: Row) -> str:
    """The constraint that decides, where times tell one."""
    return _sentence(f"Bound by {row.binding}") if row.fits and row.step_seconds else ""


def helps(reply: Reply) -> str:
    """Changes that would make it fit; empty where it fits or none is known to help."""
    row = reply.row
    if row is None or row.fits or not reply.helps:
        return ""
    layers, choices = reply.question.spec.model.layers, []
    for change in reply.helps:
        if fewer := change.get("layers"):
            choices.append(f"{_count(layers - fewer, 'layer')} less")
        else:
            more = (f"{format_bytes(n)} more {TIERS[tier]}" for tier, n in change.items())
            choices.append(" and ".join(more))
    return f"It would fit with {', or with '.join(choices)}."


def largest(reply: Reply) -> str:
    """The largest model under these budgets, with the method of the answer."""
    row = reply.row
    if row is None or row.largest_layers is None:
        return ""
    if not row.largest_layers:
        return f"Not even one layer fits with {row.label}."
    least = "at least " if row.largest_open else ""
    return (
        f"Largest model under these budgets with {row.label}: "
        f"{least}{_count(row.largest_layers, 'layer')}, {parameters(row.largest_parameters)}."
    )


def costs(reply: Reply) -> str:
    """Where the times come from."""
    if not reply.hardware:
        return ""
    source = BASES[reply.source].format(reply.hardware)
    link = ""
    if reply.link_bytes_per_s < 0.999 * reply.own_link_bytes_per_s:
        own = reply.own_link_bytes_per_s
        link = f", with a link of {rate(reply.link_bytes_per_s)} instead of {rate(own)}"
    notes = [reply.note, *(reply.row.notes if reply.row else ())]
    return " ".join([f"{source}{link}.", *(_sentence(note) for note in notes if note)])


def table(reply: Reply) -> list[dict[str, Any]]:
    """One row a method, the chosen one marked by a word."""
    return [_line(row, reply) for row in reply.rows]


def _line(row: Row, reply: Reply) -> dict[str, str]:
    line = dict.fromkeys(
        ("method", "fits", "samples/s", "step", "device", "host", "disk", "largest", "bound by"), ""
    )
    line["method"] = row.label + (" (this answer)" if row.method == reply.chosen else "")
    if not row.stage:
        return line | {"fits": "..."}
    line |= {tier: format_bytes(n) for tier, n in row.peak.items()}
    why = row.binding if row.refused else row.binding.partition(";")[0]
    why = why if row.step_seconds or not row.fits else ""
    fits = "yes" if row.fits else "not planned" if row.refused else "no"
    line |= {"fits": fits, "bound by": why[:1].upper() + why[1:]}
    if row.fits and row.step_seconds is not None:
        line["samples/s"] = f"{row.samples_per_second:.3g}"
        line["step"] = f"{row.step_seconds:.3g} s"
    if row.largest_layers is not None:
        more = "at least " if row.largest_open else ""
        line["largest"] = f"{more}{_count(row.largest_layers, 'layer')}"
    return line


def rate(bytes_per_s: float) -> str:
    """Rate of a link, in the units of its data sheet."""
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a name such as ``v100-32gb``, and a full stop."""
    text = text.strip()
    if text.partition(" ")[0].isalpha():
        text = text[0].upper() + text[1:]
    return text + ("" if text.endswith((".", "!", "?")) or not text else ".")
