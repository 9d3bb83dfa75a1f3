"""The papers' numbers, the machines they were measured on, and what the simulator makes of both.

`tables` reads the published values, `hardware` the constants of the published machines, and
`predict` puts the simulated figures beside the published ones. README.md says where every number
comes from, which ones calibrate the machine, and which published values rest on a defect. Imports
no torch.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
"""Of the files of what was published."""
