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
results: str = "results"  # folder of the run records; a relative one lies in the repository

# %% [markdown]
# ## A run is a spec
# `RunSpec.of` takes every field that the command line has as a flag, and refuses what does not fit.

# %%
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec

model = ModelSpec(layers=layers, hidden=hidden, heads=4, seq=64, vocab=256)
spec = RunSpec.of(method="stronghold", model=model, window=window, batch=batch, steps=steps)
spec.key()

# %% [markdown]
# ## Train
# The run has a process of its own. A second call finds the record and trains nothing.

# %%
from workbench.runs.resolve import resolve
from workbench.runs.runner import run
from workbench.runs.store import REPOSITORY_RESULTS, Store

store = Store(REPOSITORY_RESULTS.parent / results)
record = run(resolve(spec), store)
record.status, record.losses[0], record.losses[-1]

# %% [markdown]
# ## Predicted and measured
# The plan is made again from the costs that the run has measured of this machine.

# %%
from workbench.runs.planning import answer

planned = answer(spec, store).plan
planned.step_seconds, batch / record.samples_per_second

# %% [markdown]
# ## The timeline
# Predicted above measured: one row for compute, one for copies to the device and from it, one for
# updates on the host.

# %%
from IPython.display import SVG

from workbench.figures.style import as_svg
from workbench.report.timeline import draw_gantt

SVG(as_svg(draw_gantt([record], store)))
