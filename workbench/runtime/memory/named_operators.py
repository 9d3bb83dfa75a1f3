"""Objects of torch's operators, made before threads ask for them.

A dispatch mode gets each operator as an object of Python's, which torch makes when it is first
asked for; its C++ side then keeps a pointer and no reference (as seen in torch 2.13). Two
threads that ask at once make one each, of which one is soon freed: where the pointer is to that
one, the next such operation of any thread ends the process by SIGSEGV.
"""

from __future__ import annotations

from functools import cache

import torch

NAMESPACES = ("aten", "c10d")
"""Of operators on tensors, and of messages and sums between processes."""


@cache
def name_operators() -> None:
    """Make the objects of all operators, once in a process; it takes a tenth of a second."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace in NAMESPACES:
            operator, _, overload = rest.partition(".")
            packet = getattr(getattr(torch.ops, namespace), operator, None)
            getattr(packet, overload or "default", None)
