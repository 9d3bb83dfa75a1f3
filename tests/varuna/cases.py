"""What workers of tests do; each function is run by every rank of a case."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import socket
import threading
import time
import traceback
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn

from tests.varuna import net
from tests.varuna.engine_cases import deaf, disagreeing  # noqa: F401  # run by their names
from workbench.core.stage_map import StageMap
from workbench.elastic.worker import AGENT, Worker
from workbench.methods.pipeline.making import StageJob, in_turn
from workbench.methods.pipeline.orders import B, F, Order, Pass, R, held
from workbench.methods.pipeline.stage_pipeline import StagePipeline
from workbench.methods.pipeline.stepping import StepPlan
from workbench.methods.varuna import Profiler, Varuna

CLIP = 0.5
LONG_STOPPED_S = 60
"""Longer than any rank takes to notice that another one is stopped."""


def made(stages: int, replicas: int, batch: int, chunk: int, **kw) -> Varuna:
    """The pipeline of the net."""
    kw = {"weight_of": net.labels_of, "device": "cpu", **kw}
    places = kw.pop("places", str(StageMap.of(stages, replicas)))
    kw["stages"] = kw.pop("cut", None)
    inner = {name: kw.pop(name) for name in ("batchnorm", "blocks", "drop") if name in kw}
    module = net.net(**inner) if replicas == 1 else lambda: net.net(**inner)
    return Varuna(module, places, net.batch, batch, chunk, **kw)


def share_of(model: Varuna, batch: int, step: int) -> dict:
    """This process's rows of a step."""
    return net.rows_of(net.batch(batch, step), model.share, batch)


def train(
    stages: int,
    replicas: int,
    batch: int,
    chunk: int,
    steps: int,
    optimizer: str = "adamw",
    load: str | None = None,
    save: str | None = None,
    save_at: int = 0,
    late: float = 0.0,
    dies: tuple[int, str] | None = None,
    scale: float = 2.0**10,
    double: bool = False,
    clip: float | None = CLIP,
    **kw,
) -> dict:
    """Losses, norms, this rank's weights and statistics, and the loss of the last batch in
    evaluation mode; in fp64, where asked for."""
    if double:
        torch.set_default_dtype(torch.float64)
    if late:
        kw["perturb"] = Late(late)
    if dies:
        kw["perturb"] = Dies(*dies)
    model = made(stages, replicas, batch, chunk, **kw)
    optimizer, scheduler = getattr(net, optimizer)(model.parameters())
    model.set_optimizer(optimizer, init_loss_scale=scale)
    model.keep(scheduler)
    if load:
        assert model.load_checkpoint(load) == save_at
    losses, norms = [], []
    for step in range(model.steps, steps):
        loss, overflow = model.step(share_of(model, batch, step), clip)
        losses.append(loss)
        norms.append(model.grad_norm)
        if not overflow:
            optimizer.step()
        scheduler.step()
        if save and model.steps == save_at:
            model.checkpoint(Path(save))
    named = (*model.named_parameters(), *model.named_buffers())
    found = {
        "losses": losses,
        "norms": norms,
        "weights": {name: value.tolist() for name, value in named},
        "evaluated": model.evaluate(share_of(model, batch, steps - 1)),
        "scale": model.scale.value,
        "recorded": recorded(model),
    }
    model.close()
    return found


def recorded(model: StagePipeline) -> list[str]:
    """Kinds of passes of which this process has recordings."""
    stages = getattr(model._engine._passes, "_recorded", {}).values()
    return sorted({kind for stage in stages for each in stage for kind in each._recordings})


def misuse(wrong: list[dict], others: list[dict], folder: str, **case: int) -> dict:
    """Refusals of pipelines of the arguments in `wrong`, of calls on one that can train
    nevertheless, and of its checkpoint in pipelines of the arguments in `others`."""
    said = []

    def saying(call, *args, **kw) -> None:
        try:
            call(*args, **kw)
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))

    for kw in wrong:
        saying(made, **case | kw)
    model = made(**case)
    inputs = share_of(model, case["batch"], 0)
    saying(model.checkpoint, folder)
    saying(model.set_optimizer, net.sgd(net.net().parameters())[0])
    saying(model.keep, "text")
    for change in ({"tokens": inputs["tokens"][1:]}, {"more": 1}, {"flag": False}):
        saying(model.step, inputs | change)
    model.set_optimizer(net.sgd(model.parameters())[0])
    loss = model.step(inputs).loss
    model.checkpoint(folder)
    model.close()
    for kw in others:
        model = made(**case | kw)
        model.set_optimizer(net.sgd(model.parameters())[0])
        saying(model.load_checkpoint, folder)
    model = made(**case)
    model.set_optimizer(net.sgd(model.parameters())[0])
    saying(model.checkpoint, folder)
    return {"said": said, "loss": loss}


def of_jobs(folder: str) -> list:
    """Steps that rounds of jobs go on from, and refusals. An old job saves step 2 in F; so does
    another one, which has gone on from it, step 3; a new job has saved step 1 aside."""
    Worker.may_commit = lambda *_: True
    case, shared = {"stages": 1, "replicas": 1, "batch": 2, "chunk": 2}, Path(folder, "F")

    def round(job: str, began: int | None, resume_step: int | None = None) -> Varuna:
        line, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        about = {"pid": os.getpid(), "line": line.detach(), "round": 1, "rank": 0, "batch": 2}
        Path(folder, job).mkdir(exist_ok=True)
        about |= {"folder": f"{folder}/{job}", "job": job, "began": began}
        os.environ[AGENT] = json.dumps(about | {"resume_step": resume_step})
        model = made(**case)
        model.set_optimizer(net.sgd(model.parameters())[0])
        return model

    def save(model: Varuna, steps: int, to: Path | None = None) -> None:
        for step in range(steps):
            model.step(share_of(model, 2, step))
        model.checkpoint(to).wait()

    save(round("old", None), 2, shared)
    save(round("new", None), 1)
    goes_on = round("new", 0, 1)
    found = [goes_on.load_checkpoint(shared)]
    try:
        save(goes_on, 0, shared)
    except ValueError as error:
        found.append(str(error))
    told = ((0, None), (2, 2), (None, None))
    found += [round("none", *each).load_checkpoint(shared) for each in told]
    other = round("other", None)
    other.load_checkpoint(shared)
    save(other, 1, shared)
    del os.environ[AGENT]
    plain = made(**case)
    plain.set_optimizer(net.sgd(plain.parameters())[0])
    later = (round("other", 2, 3), round("other", 2, 2), round("none", 2), round("", 0, 3))
    found += [each.load_checkpoint(shared) for each in (plain, *later)]
    flipped = next(shared.glob("step-00000003/unit-*"))
    for begins in (lambda: save(round("other", 2, 3), 1), lambda: later[0].load_checkpoint(shared)):
        try:
            begins()
        except ValueError as error:
            found.append(f"{type(error).__name__}: {error}")
        if flipped.exists():
            flipped.write_bytes(flipped.read_bytes()[:-1] + b"\xff")
    return [*found, *sorted(path.name[:13] for path in shared.iterdir())]


class Dies:
    """Kills a rank in its first action of a kind in the second step."""

    def __init__(self, rank: int, kind: str) -> None:
        self._rank, self._kind = rank, kind

    def __call__(self, action, step) -> None:
        if (dist.get_rank(), action.kind, step) == (self._rank, self._kind, 1):
            os.kill(os.getpid(), signal.SIGKILL)


class Late:
    """Makes actions late, each by a part of so many seconds that its name decides."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, action, step) -> None:
        import hashlib
        import time

        part = hashlib.sha256(f"{action.name} {step}".encode()).digest()[0] / 255
        time.sleep(self._seconds * part)


def profiled(out: str, per_host: int, sizes: list[int], replicas: int) -> dict:
    """Writes a profile; says its model, and whether a second look keeps it."""
    profiler = Profiler(net.net, net.batch, "cpu", per_host, out_folder=out)
    path = profiler.profile_all(sizes)
    before = path.read_text()
    kept = profiler.profile_all(sizes[:1], anew=False).read_text() == before
    return {"kept": kept, "model": [profiler.model.name, profiler.model.digest]}


def take_turns(stages: int, folder: str, side: int) -> list[str]:
    """Lines that processes of one host write as each begins and ends to make a module of so many
    weights a side, and takes its part of it. Where there is room for all, the others end when the
    first has taken its part and both have begun."""
    rank, log = dist.get_rank(), Path(folder, "log")

    def write(line: str) -> None:
        with log.open("a") as file:
            file.write(f"{line}\n")

    def whole() -> nn.Module:
        write("begins")
        while rank and side == 1 and len(log.read_text().splitlines()) < 5:
            time.sleep(0.01)
        write("ends")
        return nn.Linear(side, side, device="meta")

    def make(module: nn.Module, told: str | None) -> str:
        write(f"{told or 'first'} takes")
        return "told"

    in_turn(whole, make, rank, dist.new_group(backend="gloo"), says=lambda own: own)
    return log.read_text().splitlines()


def driven(
    stages: int, replicas: int, method: str = "varuna", save: str | None = None, **how
) -> dict:
    """Losses and weights of an engine that takes its steps of a loop; a replica has its rows. Saved
    after half of them, where asked for."""
    from tests.methods import loops as user
    from workbench import Engine

    module = user.net(frozen=method != "fsdp")
    engine = Engine(
        module, {"lr": user.LR, "params": user.in_groups(module)}, method=method,
        stages=stages if method == "varuna" else None, clip=user.CLIP, device="cpu",
        weight_of=user.labels_of, **how,
    )  # fmt: skip
    with engine:
        scheduler, losses = user.warmed(engine.optimizer), []
        rows, replica = user.ROWS // replicas, dist.get_rank() // stages
        for batch in user.batches(padded=True):
            part = {name: t[replica * rows : (replica + 1) * rows] for name, t in batch.items()}
            losses.append(engine.step(part, user.loss_of))
            scheduler.step()
            if save and engine.steps == user.STEPS // 2:
                engine.save(save)
            told = engine.evaluate(user.others(), user.loss_of)
        weights = engine.state_dict()
        wanted = user.judged(weights, frozen=method != "fsdp")
        weights = {name: value.tolist() for name, value in weights.items()}
    del engine, scheduler
    gc.collect()
    opened = map(str, Path("/proc/self/fd").iterdir())
    files = [os.readlink(path) for path in opened if os.path.lexists(path)]
    left = [path for path in files if "memfd" in path or "pidfd" in path or "workbench" in path]
    figures = {"told": told, "wanted": wanted}
    return {"losses": losses, "weights": weights, "left": left, "figures": figures}


def failing(stages: int, replicas: int, method: str, results: str, how: str) -> dict:
    """Words of the error that ends an engine's step on a rank, where the last one is late for its
    second step, fails in its third, in some way, and stays until the first has heard of it."""
    from tests.methods import loops as user
    from workbench import Engine
    from workbench.ranks import peers
    from workbench.runtime.memory.tiers import OutOfMemory
    from workbench.training import loop_ranks as ranks_driven

    def fails(*_) -> None:
        if how == "stopped":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # before it goes on
        raise OSError("no such luck")

    def lacks(*_, **__) -> None:
        raise OutOfMemory(tier="host", what="all", asked=9, in_use=0, budget=None)

    rank, said, heard = dist.get_rank(), "nothing", Path(results, f"heard-{method}-{how}")
    given = {"method": method, "device": "cpu", "stages": 2 if how == "stages" else None}
    given["device_memory"] = "1KiB" if how == "small" else None
    if how == "lacks":
        ranks_driven.RankHost.__init__ = lacks
    peers.STOPPED_S = 0.5
    dist.all_gather_object(pids := [0, 0], os.getpid())
    module = user.net(frozen=method != "fsdp")
    with Engine(module, {"lr": user.LR}, results=results, **given) as engine:
        for number, batch in enumerate(user.batches(4, rows=2 - (rank and how == "fewer"))):
            if rank and number == 1 and how == "stopped":
                time.sleep(3 * peers.STOPPED_S)
            if rank and number == 2:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "closed":
                    break
                steps = engine._steps
                if how == "uneven":
                    pass
                elif method == "fsdp":
                    steps._whole._update = fails
                elif method == "varuna":
                    next(iter(steps._model._stepping._executors.values()))._perturb = fails
                else:
                    steps._rank.executor._perturb = fails  # the others end in their own way
            call = partial(engine.step, batch, user.loss_of)
            if how == "uneven" and (rank, number) == (1, 2):
                call = engine.state_dict
            try:
                call()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                break
        if rank == 0 and how == "raises":
            try:
                engine.step(batch, user.loss_of)
            except ValueError as error:
                said += f"; then {error}"
    if rank == 0:
        heard.touch()
        if how == "stopped":
            os.kill(pids[1], signal.SIGCONT)
    while not heard.exists():
        time.sleep(0.01)
    return {"said": said}


def _wakes(pid: int) -> None:
    """Have a process go on that stays stopped: it may stop after it was told to go on."""
    seconds = 0
    while psutil.pid_exists(pid):
        time.sleep(1)
        stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        seconds = seconds + 1 if stopped else 0
        if seconds > LONG_STOPPED_S:
            os.kill(pid, signal.SIGCONT)


def stopped(stages: int, replicas: int, method: str, results: str, places: tuple[str, ...]) -> dict:
    """Words of the errors that end what the first rank does while the last one is stopped there,
    each with an engine of its own, and the losses of one that is not disturbed."""
    from tests.methods import loops as user
    from workbench import Engine, engine
    from workbench.ranks import peers

    def stops(do):
        def stop(*given, **named):
            os.kill(os.getpid(), signal.SIGSTOP)
            return do(*given, **named)

        return stop if dist.get_rank() else do

    peers.STOPPED_S, peers.NOTICE_S, told, whole = 0.5, 0.5, [], engine.Objective
    dist.all_gather_object(pids := [0, 0], os.getpid())
    if dist.get_rank() == 0:
        threading.Thread(target=_wakes, args=(pids[1],), daemon=True).start()
    for where in (*places, "nowhere"):
        engine.Objective = stops(whole) if where == "planning" else whole
        module = user.net(frozen=method != "fsdp")
        one = Engine(module, {"lr": user.LR}, method=method, results=results, device="cpu")
        first, second = user.batches(2)
        try:
            losses = [one.step(first, user.loss_of)]
            if where not in ("planning", "nowhere"):
                place = {"state_dict": "tensors"}.get(where, where)
                setattr(one._steps, place, stops(getattr(one._steps, place)))
            if where in ("save", "load"):
                getattr(one, where)(Path(results, method))
            if where == "state_dict":
                one.state_dict()
            losses.append(one.step(second, user.loss_of))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
            if dist.get_rank() == 0:
                os.kill(pids[1], signal.SIGCONT)
        one.close()
    return {"told": told, "losses": losses}


def goes_on(
    stages: int, replicas: int, method: str, results: str, kept: str, dtype: str, lr: float
) -> dict:
    """Losses, weights and the last norm of an engine that takes a checkpoint up, twice."""
    from tests.methods import loops as user
    from workbench import Engine

    module, data = user.normed(dtype == "fp32" and method != "fsdp")
    given, rows = {"clip": user.CLIP, "dtype": dtype, "results": results}, 8 // replicas
    if dtype == "bf16":  # its sums differ by micro-batch, and a plan chooses by measured times
        given |= {"forward_size": rows, "backward_size": rows}
    with Engine(module, {"lr": 9 * lr}, method=method, device="cpu", **given) as engine:
        begins = engine.load(kept)  # and the rate
        part = slice(dist.get_rank() * rows, (dist.get_rank() + 1) * rows)
        pairs = [tuple(tensor[part] for tensor in pair) for pair in data[begins:]]
        engine.step(pairs[0], user.distance)
        assert engine.load(kept) == engine.steps == begins  # as if that step had never been
        losses = [engine.step(pair, user.distance) for pair in pairs]
        weights = {name: value.tolist() for name, value in engine.state_dict().items()}
        return {"losses": losses, "weights": weights, "norm": engine.grad_norm}


def around(
    position: int, depth: int, micros: int, positions: tuple[int, ...], again: bool = False
) -> list[Pass]:
    """Forward passes of all stages of a position, then backward passes, whichever these are; each
    behind a recomputation where that is asked for, but for the last stage's."""
    own = [*enumerate(held(positions)[position])]
    found = [Pass(F, micro, chunk) for chunk, _ in own for micro in range(micros)]
    for chunk, stage in reversed(own):
        kinds = (R, B) if again and stage < len(positions) - 1 else (B,)
        found += [Pass(kind, micro, chunk) for micro in range(micros) for kind in kinds]
    return found


def train_around(
    stages: int, positions: list[int], cut: str, batch: int, chunk: int, blocks: int, steps: int,
    clip: float | None, again: bool,
) -> dict:  # fmt: skip
    """As `train` in fp64, by an order of one's own on positions of any stages."""
    torch.set_default_dtype(torch.float64)
    passes = partial(around, positions=positions, again=again)
    order = Order(passes=passes, label="around", summary="", recomputes=again)
    plan = StepPlan(map=StageMap.of(stages, 1), order=order, positions=positions)
    job = StageJob(
        get_batch=net.batch, plan=plan, shares=plan.shares(batch, chunk), backend="gloo", cut=cut,
        device=torch.device("cpu"), dtype=torch.float64, weight_of=net.labels_of,
    )  # fmt: skip
    model = StagePipeline(net.net(blocks=blocks), job)
    optimizer, scheduler = net.adamw(model.parameters())
    losses, norms = [], []
    for step in range(steps):
        losses.append(model.passes(net.batch(batch, step), clip).loss)
        norms.append(model.grad_norm)
        optimizer.step()
        scheduler.step()
    weights = {name: value.tolist() for name, value in model.named_parameters()}
    evaluated = model.evaluate(net.batch(batch, steps - 1))
    model.close()
    return {"losses": losses, "norms": norms, "weights": weights, "evaluated": evaluated}


def asynchronous(stages: int, cases: list[dict]) -> dict:
    """Stages that are updated by themselves, case after case."""
    from tests.ftpipe.stages import trained

    return {"each": [trained(dist.get_rank(), **case) for case in cases]}


def streamed(cases: list[dict], stages: int) -> dict:
    """Loops that take batches ahead, one after the other."""
    return {"each": [_streamed(**case) for case in cases]}


def _streamed(
    micros: int, steps: int, how: str, positions: tuple[int, ...] = (), layers: int = 0,
    folder: str = "", optimizer: str = "adamw", own: bool = False, net: dict | None = None,
    then: str = "ftpipe", evaluates: bool = False, **options,
) -> dict:  # fmt: skip
    """Losses and weights of an engine that takes batches ahead, and saves midway in a `folder`,
    beside those of this and of another one, of the method `then`, that go on from there; of ranks
    of which the last one fails in some way, the words of the error. `own`: the optimizer is a
    function. `evaluates`: a held-out batch after each loss."""
    from tests.ftpipe.stages import OPTIMIZERS, ROWS, Layers, batch, rate
    from workbench import Engine

    def loader(count: int, seen: int = 0):
        for step in range(seen, count):
            engine.optimizer.param_groups[0]["lr"] = rate(optimizer, step)
            if how == "killed" and dist.get_rank() and step == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raises" and dist.get_rank() and step == 4:
                raise OSError("no such luck")
            parts = [batch(ROWS, step, micro) for micro in range(micros)]
            made = {name: torch.cat([part[name] for part in parts]) for name in "xy"}
            made = {name: value.to(torch.get_default_dtype()) for name, value in made.items()}
            if how == "wild" and step == 1:
                made["x"] *= torch.inf
            yield made

    def distance(outputs, given):
        return (outputs - given["y"]).square().mean()

    def again() -> bool:
        """Whether an engine does as well from the checkpoint on."""
        told["resumed"] = engine.load(folder)
        told["again"] = [float(loss) for loss in engine.stream(loader(steps, half), distance)]
        found = engine.state_dict()
        alike = all(torch.equal(value, weights[name]) for name, value in found.items())
        return alike and told["again"] == losses[half:]

    def engine_of(method: str) -> Engine:
        options_ = ({"map": " ".join(map(str, positions))} if positions else {}) | options
        config = {"lr": 0.01, "weight_decay": 0.1}
        if own:
            config, options_["optimizer"] = {}, OPTIMIZERS.get(optimizer, torch.optim.ASGD)
        return Engine(
            module, config, method=method, device="cpu", quiet=how != "wild",
            microbatches=micros, **options_ if method == "ftpipe" else {},
        )  # fmt: skip

    torch.set_default_dtype(torch.float32 if "dtype" in options else torch.float64)
    module = Layers(layers or len(positions), **net or {})
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    errors, half, told = io.StringIO(), steps // 2, {"said": ""}
    try:
        with redirect_stderr(errors), engine_of("ftpipe") as engine:
            losses = []
            for loss in engine.stream(loader(half), distance):
                losses.append(float(loss))
                if evaluates:
                    found = engine.evaluate([batch(ROWS, 99)], distance)
                    told.setdefault("evaluated", []).append(found["loss"])
            engine.save(folder) if folder else engine.state_dict()
            losses += engine.stream(loader(steps, half), distance)
            weights = engine.state_dict()
            try:
                engine.step(next(loader(1)), distance)
            except ValueError as error:
                told["said"] = str(error)
            told["alike"] = bool(folder) and again()
        if folder:
            with engine_of(then) as engine:
                told["alike"] &= again()
    except Exception as error:
        return {"said": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    same = all(torch.equal(value, module.state_dict()[name]) for name, value in kept.items())
    told |= {"untouched": same, "errors": errors.getvalue()}
    lists = {name: value.tolist() for name, value in weights.items()}
    return {"losses": losses, "weights": lists, **told}
