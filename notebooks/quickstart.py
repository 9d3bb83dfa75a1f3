# %% [markdown]
# # Quickstart
# A model of eight layers is trained with a window of three of them on the device: first it is
# planned, then trained, then predicted and measured times are put side by side. It takes about a
# minute on two cores; a GPU is used where there is one.

# %% tags=["parameters"]
layers: int = 8  # blocks of the model
hidden: int = 128  # width of the model
window: int = 3  # layers on the device at once
batch: int = 4  # samples a step
steps: int = 5  # optimizer steps
results: str = "results"  # folder of the run records, as --results of the command line

# %% [markdown]
# ## Plan
# Fields have the names of the command line's flags. The plan says how long a step takes, what each
# tier will hold, and what binds. Times are estimates until such layers have been measured here,
# which the run below does.

# %%
import workbench

setting = {
    "method": "stronghold", "layers": layers, "hidden": hidden, "heads": 4, "seq": 64,
    "vocab": 256, "window": window, "batch": batch, "steps": steps,
}  # fmt: skip
workbench.plan(**setting, results=results)

# %% [markdown]
# ## Train
# The run has a process of its own. A second call finds the record and trains nothing.

# %%
record = workbench.run(**setting, results=results)

# %% [markdown]
# ## Predicted and measured
# The plan is made again, from the costs that the run has measured of this machine. Plans are for an
# idle machine: if other programs used it during the run, a measured step may take several times as
# long as planned.

# %%
planned = workbench.plan(**setting, results=results).plan
measured = batch / record.samples_per_second
print(f"a step: {planned.step_seconds:.3f} s planned, {measured:.3f} s measured")
print(record.busy or "others hardly used this machine")

# %% [markdown]
# ## The timeline
# Predicted above measured: one row for compute, one for copies to the device and from it, one for
# updates on the host.

# %%
from IPython.display import SVG

from workbench.figures.style import as_svg
from workbench.report.timeline import draw_gantt
from workbench.runs.store import Store

SVG(as_svg(draw_gantt([record], Store(results))))
