"""Built-in optimizers without torch's hooks for torch.compile.

torch wraps the methods of its optimizers so that the compiler skips them; the first call imports that compiler
(torch._dynamo with sympy), which takes about a second. Tenfold never compiles an optimizer, so it calls the methods
inside the wrappers, which `inspect.unwrap` finds. What they compute is the same.
"""

import inspect

import torch

_EAGER: dict[type[torch.optim.Optimizer], type[torch.optim.Optimizer]] = {}
METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of a built-in optimizer that does not import the compiler, or a user's class as it is."""
    if not kind.__module__.startswith(("torch.optim.", "tenfold.")):
        return kind
    if kind in _EAGER:
        return _EAGER[kind]
    members = {name: inspect.unwrap(getattr(kind, name)) for name in METHODS}
    members["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    _EAGER[kind] = type(kind.__name__, (kind,), members | {"__doc__": kind.__doc__, "__module__": __name__})
    return _EAGER[kind]
