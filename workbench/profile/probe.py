"""How many samples a micro-batch may have: the fewest that a model runs with, and for either pass
the most for which its device has room.

As published (VLDB'22), every layer runs by itself, forward alone or there and back, and sizes
double until one of the layers finds no room; here they then close in on the largest that does. A
model may also need more than one sample, as BatchNorm does where a picture is down to one pixel.

Without a GPU an attempt is made on fake tensors, under the meter that keeps the budget in a run:
nothing is computed and no memory is taken (small layers are simply run: torch takes more time to
import what it fakes tensors with). Where two small ones tell that there is plenty of room
it is not made at all, since the bytes of a layer grow evenly with the samples. On a GPU, and where
fake tensors do not know what a model does, it is made by a process of its own, which may run out of
memory, or lose its driver, and nothing is lost with it. It goes on to the next size as long as it
is what it was: a search has half a dozen sizes too many, and to start anew takes ten seconds.

    python -m workbench.profile.probe ORDER.json ANSWERS

is such a process: sizes come on its standard input, answers go to the descriptor ANSWERS.
"""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch

from workbench.core.bytesize import format_bytes
from workbench.core.garbage import keep_what_is_there
from workbench.core.paths import import_path
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.families import blank_rows
from workbench.profile.alone import Alone, Setting
from workbench.profile.bench import torch_device
from workbench.profile.footprint import fake_tensors
from workbench.profile.profile import Limits
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.tiers import OutOfMemory

PLENTY = 0.5
"""Part of a budget that what is foreseen may take without being tried."""
SMALL_FLOPS, SMALL_PARAMETERS = 2e9, 1 << 24
"""Operations of all layers' forward passes, a quarter of a second there and back on a processor at
most; and parameters that are really made for them, 128 MiB with gradients. Embeddings count no
operations."""
PROCESS = "workbench.profile.probe"
LONGEST_S = 180.0
"""Until a process must have answered."""

Attempt = Callable[[bool, int], Exception | None]
"""``attempt(backward, samples)`` gives what went wrong: OutOfMemory where there is no room."""


class CannotRun(ValueError):
    """A model refuses a micro-batch, or the process that tried it ended; the message says how."""


class NoRoom(ValueError):
    """A device has no room for the fewest samples that a model runs with; the message says what
    lacks."""

    def __init__(self, message: str, samples: int) -> None:
        super().__init__(message)
        self.samples = samples


def limits(spec: RunSpec, device: str, budget: int, most: int) -> Limits:
    """Limits of the spec's model on a device of `budget` bytes, up to `most` samples.

    Raises NoRoom where the fewest samples are too many for the device, and CannotRun where no
    number of them can be run.
    """
    try:
        return _limits(spec, device, budget, most)
    except NoRoom as refusal:
        layers, samples = Layers(spec, "cpu", sys.maxsize), refusal.samples
        while layers.attempt(True, samples, fake=True) is not None:
            if samples == most:
                raise
            samples = min(2 * samples, most)
        layers.attempt(True, samples, fake=True)  # the first one may count what it leaves behind
        layer, needed = layers.heaviest(samples)
        if needed <= budget:  # so little lacks that it is seen in one order of attempts only
            raise
        raise NoRoom(
            f"{layer} needs at least {format_bytes(needed)} of device memory in a micro-batch of "
            f"{samples}, and the device may hold {format_bytes(budget)}",
            samples,
        ) from refusal


def _limits(spec: RunSpec, device: str, budget: int, most: int) -> Limits:
    with Processes(spec, device, budget) as processes:
        if device == "cuda":
            torch.cuda.empty_cache()  # what this process keeps, the others would lack
            return search(processes.attempt, most)
        layers = Layers(spec, device, budget)

        def attempt(backward: bool, samples: int) -> Exception | None:
            if layers.have_plenty(backward, samples):
                return None
            wrong = layers.attempt(backward, samples, fake=True)
            if wrong is None or isinstance(wrong, (OutOfMemory, ValueError)):
                return wrong  # a ValueError is the model's own; fake tensors raise others
            return processes.attempt(backward, samples)

        return search(attempt, most)


def search(attempt: Attempt, most: int) -> Limits:
    """The limits, from attempts. The most of all is tried early: mostly there is room for it."""
    smallest = 1
    while (wrong := attempt(True, smallest)) is not None:
        if isinstance(wrong, OutOfMemory):
            raise NoRoom(f"{wrong}, in micro-batches of {smallest}", smallest)
        if smallest == most:
            raise CannotRun(f"no micro-batch of up to {most} samples can be run: {wrong}")
        smallest = min(2 * smallest, most)
    backward = _largest(lambda samples: attempt(True, samples) is None, smallest, most)
    forward = _largest(lambda samples: attempt(False, samples) is None, backward, most)
    return Limits(smallest=smallest, forward=forward, backward=backward)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest size that fits, from `low`, which does, to `high`."""
    if low == high or fits(high):
        return high
    while high - low > 1:
        middle = min(2 * low, (low + high) // 2)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class Layers:
    """One layer of each kind of a spec's model, to be run by themselves."""

    def __init__(self, spec: RunSpec, device: str, budget: int) -> None:
        """`budget`: bytes of the device."""
        self._spec, self._device, self._budget = spec, torch_device(device), budget
        self._peaks: dict[tuple[bool, int], list[int]] = {}
        """Bytes of each layer in attempts that went well."""
        self._model = make_model(spec.model)
        first = {self._model.kind(u): u for u in reversed(range(self._model.num_units))}
        self._units = [*first.values()]
        self._rows = blank_rows(spec.model, 1)

    def attempt(self, backward: bool, samples: int, *, fake: bool = False) -> Exception | None:
        """Try `samples` samples; returns the failure, if any. A `fake` attempt computes nothing on
        layers that are not small."""
        peaks = []
        try:
            with ExitStack() as stack:
                if fake and not self._are_small(samples):
                    stack.enter_context(fake_tensors())
                with device_meter(self._device, self._budget) as meter:
                    *inputs, targets = (
                        torch.zeros((samples, *part.shape[1:]), dtype=part.dtype)
                        for part in self._rows
                    )
                    setting = Setting.of(
                        self._model, tuple(inputs), targets, seq=self._spec.model.seq,
                        dtype=self._spec.dtype, device=self._device.type,
                    )  # fmt: skip
                    for unit in self._units:
                        alone = Alone(setting, unit, meter, noise=False)
                        if backward:
                            alone.there_and_back()
                        else:
                            alone.forward()
                        peaks.append(meter.peak)
                        del alone
                        meter.reset_peak()
        except Exception as error:
            return error.with_traceback(None)  # its frames hold the tensors
        self._peaks[backward, samples] = peaks
        return None

    def _are_small(self, samples: int) -> bool:
        """Whether to run them costs less than torch takes to import what fakes tensors."""
        model, seq = self._model, self._spec.model.seq
        return (
            sum(model.flops(unit, samples, seq) for unit in self._units) < SMALL_FLOPS
            and sum(map(model.unit_parameters, self._units)) < SMALL_PARAMETERS
        )

    def heaviest(self, samples: int) -> tuple[str, int]:
        """The layer that needs most, there and back, and its bytes, of an attempt that went
        well."""
        peaks = self._peaks[True, samples]
        most = max(range(len(peaks)), key=peaks.__getitem__)
        unit = self._units[most]
        kind = self._model.kind(unit)
        return f"unit {unit} of the model" + ("" if kind.isdecimal() else f" ({kind})"), peaks[most]

    def have_plenty(self, backward: bool, samples: int) -> bool:
        """Whether lines through the fewest samples that ran and twice as many stay below a part of
        the budget for every layer. False where it is not far from there anyway."""
        ran = [size for way, size in self._peaks if way or not backward]
        fewest = min(ran, default=samples)
        if samples <= 2 * fewest:
            return False
        for size in (fewest, 2 * fewest):
            if (backward, size) not in self._peaks and self.attempt(backward, size, fake=True):
                return False
        known = (self._peaks[backward, size] for size in (fewest, 2 * fewest))
        times = samples / fewest - 1
        most = max(low + times * (high - low) for low, high in zip(*known, strict=True))
        return most < PLENTY * self._budget


class Processes:
    """Attempts by processes of their own; one that met with an error is not asked again, unless it
    found no room and has let go of all that it took."""

    def __init__(self, spec: RunSpec, device: str, budget: int) -> None:
        self._order = {"spec": spec.to_dict(), "device": device, "budget": budget}
        self._folder = tempfile.TemporaryDirectory(prefix="probe-")
        self._process: subprocess.Popen | None = None
        self._answers = -1

    def attempt(self, backward: bool, samples: int) -> Exception | None:
        """Try `samples` samples in a process; returns the failure that it reports, or its end."""
        if self._process is None:
            self._start()
        told = ""
        try:
            self._process.stdin.write(json.dumps([backward, samples]) + "\n")
            self._process.stdin.flush()
            if select.select([self._answers], [], [], LONGEST_S)[0]:
                told = os.read(self._answers, 1 << 16).decode()
        except BrokenPipeError:  # it ended before it was asked
            pass
        answer = json.loads(told) if told else {"cannot": self._end()}
        if "room" in answer:
            if answer["left"]:
                self._stop()
            return OutOfMemory(**answer["room"])
        if "cannot" in answer:
            self._stop()
            return CannotRun(answer["cannot"])
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def _start(self) -> None:
        order, log = (Path(self._folder.name) / name for name in ("order.json", "log.txt"))
        order.write_text(json.dumps(self._order))
        self._answers, answers = os.pipe()
        try:
            with log.open("w") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", PROCESS, str(order), str(answers)],
                    env={**os.environ, **import_path()},
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    pass_fds=[answers],
                    text=True,
                )
        finally:
            os.close(answers)

    def _end(self) -> str:
        """How a process ended that did not answer."""
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return f"it did not answer in {LONGEST_S:g} seconds"
        said = (Path(self._folder.name) / "log.txt").read_text(errors="replace").strip()
        return f"the process that tried it ended with exit status {status}: {said[-300:]}"

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            os.close(self._answers)
            self._process = None


def main(order: Path, answers: int) -> None:
    """Answer for one size after the other."""
    asked = json.loads(order.read_text())
    spec = RunSpec.from_dict(asked["spec"])
    layers = Layers(spec, asked["device"], asked["budget"])
    keep_what_is_there()
    for line in sys.stdin:
        before = _taken(asked["device"])
        wrong = layers.attempt(*json.loads(line))
        told: dict[str, object] = {}
        if isinstance(wrong, OutOfMemory):
            names = ("tier", "what", "asked", "in_use", "budget")
            told["room"] = {name: getattr(wrong, name) for name in names}
            wrong = None  # its causes' frames hold tensors
            told["left"] = _taken(asked["device"]) - before
        elif wrong is not None:
            told["cannot"] = str(wrong) or type(wrong).__name__
        os.write(answers, json.dumps(told).encode())


def _taken(device: str) -> int:
    """Bytes of a GPU that somebody holds, with nothing kept for later."""
    if device != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
