"""Whether kernels written in Triton can run on this machine.

torch brings Triton where there is CUDA, but Triton compiles its launchers in C, and an image made
only to run things may lack a compiler or Python's headers. So each kernel here also has a form in
torch calls.
"""

import functools
import subprocess


@functools.cache
def triton_works() -> bool:
    """Whether Triton is here, sees one kind of GPU and could build what launches kernels on it."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except (ImportError, RuntimeError, OSError, AssertionError, subprocess.SubprocessError):
        return False
    return True
