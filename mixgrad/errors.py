# SPDX-License-Identifier: Apache-2.0
"""mixgrad's errors: one class per cause, each also the built-in error that it is a case of.

Every class's docstring is its documentation: what happened, an example that fails, and the way that works.
"""

from __future__ import annotations

__all__ = [
    "CheckError",
    "CheckpointError",
    "CompileError",
    "ConversionError",
    "DemotionWarning",
    "DuplicateRegistrationError",
    "FallbackWarning",
    "GradientCountError",
    "GradientDtypeError",
    "GradientMismatchError",
    "GradientMismatchWarning",
    "GradientShapeError",
    "MissingGradientError",
    "MixgradError",
    "MutatedInputError",
    "NonFiniteError",
    "NotDifferentiableError",
    "NotRecordedError",
    "NotSavedError",
    "OtherThreadError",
    "PluginError",
    "PluginWarning",
    "RegistrationError",
    "ReplayError",
    "SettingsError",
    "TapeUsedError",
    "TargetError",
    "UnconnectedError",
    "UnknownOpError",
    "UnsupportedError",
]


class MixgradError(Exception):
    """The base of all errors that mixgrad raises of its own.

    Catch it to catch them all; catch the built-in error (``TypeError``, ``ValueError``, ...) where you would
    for NumPy. An exception raised inside your own function or gradient is never wrapped: it arrives as it was,
    with a note that names the op and the line that called it.

    >>> import mixgrad
    >>> issubclass(mixgrad.errors.UnsupportedError, (mixgrad.MixgradError, TypeError))
    True
    """


class MissingGradientError(MixgradError, NotImplementedError, LookupError):
    """The gradient of an op is needed, and no implementation of it can run.

    Either none is registered, or each that is registered declined: its ``when=`` did not hold, or it does not take
    these dtypes. The message lists them all, and `mixgrad.registry.explain` prints the same at any time.

    Fails, because the new op has a forward only:

    >>> import mixgrad
    >>> @mixgrad.register_op("errors_cube")
    ... def cube(x):
    ...     return x * x * x
    >>> mixgrad.grad(cube)(2.0)
    Traceback (most recent call last):
    mixgrad.errors.MissingGradientError: ...

    Works, with a gradient in Python (or, in C++, ``MIXGRAD_REGISTER_GRADIENT(errors_cube)``):

    >>> @mixgrad.register_gradient("errors_cube")
    ... def cube_gradient(op, g):
    ...     (x,) = op.inputs
    ...     return 3 * x * x * g
    >>> float(mixgrad.grad(cube)(2.0))
    12.0
    >>> mixgrad.unregister("errors_cube", "op")
    """


class NotDifferentiableError(MissingGradientError):
    """The backward pass is recorded, to be differentiated again, and a gradient in it is first order only.

    A gradient registered with ``differentiable=False``, or as a C++ kernel gradient, computes with plain numbers, so
    its own derivative is not known. mixgrad refuses, where a library that went on would lose a part of the second
    derivative.

    Fails:

    >>> import mixgrad, numpy as np
    >>> @mixgrad.register_op("errors_sine")
    ... def sine(x):
    ...     return np.sin(x)
    >>> @mixgrad.register_gradient("errors_sine", differentiable=False)
    ... def sine_gradient(op, g):
    ...     return g * np.cos(op.inputs[0])
    >>> mixgrad.grad(mixgrad.grad(sine))(0.5)
    Traceback (most recent call last):
    mixgrad.errors.NotDifferentiableError: ...

    Works, when the gradient is written with `mixgrad.numpy` or operators and registered without the keyword:

    >>> import mixgrad.numpy as mnp
    >>> @mixgrad.register_gradient("errors_sine", replace=True)
    ... def sine_gradient(op, g):
    ...     return g * mnp.cos(op.inputs[0])
    >>> round(float(mixgrad.grad(mixgrad.grad(sine))(0.5)), 6)
    -0.479426
    >>> mixgrad.unregister("errors_sine", "op")
    """


class NotSavedError(MixgradError, RuntimeError):
    """A gradient reads the data of an input or output that its op does not save.

    An op says with ``saves=`` what its gradients read; the tape keeps nothing else. Shapes and dtypes stay readable.
    An override may read everything when it is in force while the op runs, not only while the gradient is taken.

    Fails:

    >>> import mixgrad
    >>> @mixgrad.register_op("errors_square", saves="")
    ... def square(x):
    ...     return x * x
    >>> @mixgrad.register_gradient("errors_square")
    ... def square_gradient(op, g):
    ...     return 2 * op.inputs[0] * g
    >>> mixgrad.grad(square)(3.0)
    Traceback (most recent call last):
    mixgrad.errors.NotSavedError: ...

    Works:

    >>> @mixgrad.register_op("errors_square", saves="x", replace=True)
    ... def square(x):
    ...     return x * x
    >>> _ = mixgrad.register_gradient("errors_square", replace=True)(square_gradient)
    >>> float(mixgrad.grad(square)(3.0))
    6.0
    >>> mixgrad.unregister("errors_square", "op")
    """


class GradientCountError(MixgradError, ValueError):
    """A gradient returned the wrong number of values: it owes one for each array input, in order.

    ``None`` stands for zero, and only where the op declares that this input's gradient is zero.

    >>> import mixgrad
    >>> def gradient(op, g):
    ...     x, y = op.inputs
    ...     return g * y  # forgets y's
    >>> with mixgrad.override_gradient("multiply", gradient):
    ...     mixgrad.grad(lambda x: x * 2.0)(1.0)
    Traceback (most recent call last):
    mixgrad.errors.GradientCountError: ...
    >>> def gradient(op, g):
    ...     x, y = op.inputs
    ...     return g * y, g * x
    >>> with mixgrad.override_gradient("multiply", gradient):
    ...     float(mixgrad.grad(lambda x: x * 2.0)(1.0))
    2.0
    """


class GradientShapeError(MixgradError, ValueError):
    """A gradient has a shape that fits neither the input nor, for an op that broadcasts, the output.

    The gradient of an input has the input's shape. An op declared with ``broadcasts=True`` may also return the output's
    shape: the engine sums it. Nothing else is summed, stretched or reshaped, for that would hide mistakes.

    >>> import mixgrad, numpy as np
    >>> with mixgrad.override_gradient("sin", lambda op, g: np.ones(3)):
    ...     mixgrad.grad(lambda x: np.sin(x).sum())(np.ones(2))
    Traceback (most recent call last):
    mixgrad.errors.GradientShapeError: ...
    >>> with mixgrad.override_gradient("sin", lambda op, g: g * np.ones(2)):
    ...     mixgrad.grad(lambda x: np.sin(x).sum())(np.ones(2))
    array([1., 1.])
    """


class GradientDtypeError(MixgradError, TypeError):
    """A gradient has a dtype that cannot be a gradient: integers, booleans, strings, objects.

    Real floats are cast to the input's dtype, and of a complex gradient of a real input the real part is taken.

    >>> import mixgrad, numpy as np
    >>> with mixgrad.override_gradient("sin", lambda op, g: np.ones(2, int)):
    ...     mixgrad.grad(lambda x: np.sin(x).sum())(np.ones(2))
    Traceback (most recent call last):
    mixgrad.errors.GradientDtypeError: ...
    >>> with mixgrad.override_gradient("sin", lambda op, g: np.ones(2)):
    ...     mixgrad.grad(lambda x: np.sin(x).sum())(np.ones(2))
    array([1., 1.])
    """


class RegistrationError(MixgradError, ValueError):
    """An op or gradient cannot be registered as it is: a signature does not fit, or a plug-in is of another version.

    The registry is left as it was.

    >>> import mixgrad
    >>> mixgrad.register_op("errors_scale", inputs=("y",))(lambda x: 2 * x)
    Traceback (most recent call last):
    mixgrad.errors.RegistrationError: ...
    """


class DuplicateRegistrationError(RegistrationError):
    """The name, or this implementation of the op, is registered already. The message names both places.

    >>> import mixgrad
    >>> @mixgrad.register_gradient("multiply")
    ... def multiply(op, g):
    ...     x, y = op.inputs
    ...     return g * y, g * x
    Traceback (most recent call last):
    mixgrad.errors.DuplicateRegistrationError: ...

    For a while, use `mixgrad.override_gradient`; for good, pass ``replace=True``:

    >>> with mixgrad.override_gradient("multiply", lambda op, g: op.python(g)):
    ...     float(mixgrad.grad(lambda x: x * 2.0)(1.0))
    2.0
    """


class UnknownOpError(MixgradError, KeyError):
    """No op of this name is registered. The message names those that are spelled nearly so.

    >>> import mixgrad
    >>> mixgrad.registry["multipy"]
    Traceback (most recent call last):
    mixgrad.errors.UnknownOpError: ...
    >>> mixgrad.registry["multiply"].name
    'multiply'
    """

    def __str__(self) -> str:
        # KeyError would show the message's repr.
        return str(self.args[0]) if self.args else ""


class NotRecordedError(MixgradError, ValueError):
    """A source or a target is not on this tape.

    It was computed before it was watched or after recording stopped, belongs to another tape, is a plain array, or the
    tape has been closed or reset.

    Fails, because ``x`` is the plain array and not what ``watch`` returned:

    >>> import mixgrad, numpy as np
    >>> x = np.array([1.0, 2.0])
    >>> with mixgrad.Tape() as tape:
    ...     watched = tape.watch(x)
    ...     y = (watched * watched).sum()
    >>> tape.gradient(y, x)
    Traceback (most recent call last):
    mixgrad.errors.NotRecordedError: ...

    Works:

    >>> tape.gradient(y, watched)
    array([2., 4.])
    """


class TargetError(MixgradError, TypeError):
    """What is to be differentiated is not one real number.

    `mixgrad.grad` differentiates a real scalar. For an array of outputs, `mixgrad.elementwise_grad` gives the gradient of
    their sum and `mixgrad.jacobian` all their gradients. A complex output is refused unless the function is declared
    holomorphic, for its gradient would mean something else.

    >>> import mixgrad, numpy as np
    >>> x = np.array([1.0, 2.0])
    >>> mixgrad.grad(lambda x: x * x)(x)
    Traceback (most recent call last):
    mixgrad.errors.TargetError: ...
    >>> mixgrad.elementwise_grad(lambda x: x * x)(x)
    array([2., 4.])
    >>> mixgrad.grad(lambda z: z * z, holomorphic=True)(1j)
    np.complex128(2j)
    """


class UnconnectedError(MixgradError, ValueError):
    """The target does not depend on a source, and ``unconnected="error"`` was asked for.

    >>> import mixgrad
    >>> with mixgrad.Tape(persistent=True) as tape:
    ...     x, y = tape.watch((1.0, 2.0))
    ...     z = x * x
    >>> tape.gradient(z, (x, y), unconnected="error")
    Traceback (most recent call last):
    mixgrad.errors.UnconnectedError: ...
    >>> tape.gradient(z, (x, y), unconnected="none")
    (np.float64(2.0), None)
    >>> tape.gradient(z, (x, y))
    (np.float64(2.0), np.float64(0.0))
    """


class TapeUsedError(MixgradError, RuntimeError):
    """A tape is used in a way that its state does not allow: a second gradient, a second start, after it was closed.

    ``gradient`` uses up its tape, because it frees what was saved on the way. Ask for several gradients in one call, or
    make the tape persistent.

    >>> import mixgrad
    >>> with mixgrad.Tape() as tape:
    ...     x = tape.watch(3.0)
    ...     y = x * x
    >>> float(tape.gradient(y, x))
    6.0
    >>> tape.gradient(y, x)
    Traceback (most recent call last):
    mixgrad.errors.TapeUsedError: ...
    >>> with mixgrad.Tape(persistent=True) as tape:
    ...     x = tape.watch(3.0)
    ...     y = x * x
    >>> float(tape.gradient(y, x)), float(tape.gradient(y, x))
    (6.0, 6.0)
    """


class MutatedInputError(MixgradError, RuntimeError):
    """An array was changed between its use in a recorded op and the gradient, which would be wrong by now.

    Small arrays are copied when they are recorded, and never meet this. Large ones are shared, and checked.

    >>> import mixgrad, numpy as np
    >>> weights = np.ones(10_000)
    >>> with mixgrad.Tape() as tape:
    ...     x = tape.watch(np.ones(10_000))
    ...     y = (x * weights).sum()
    >>> weights *= 0.5
    >>> tape.gradient(y, x)
    Traceback (most recent call last):
    mixgrad.errors.MutatedInputError: ...

    Take the gradient first, or make a new array (``weights = weights * 0.5``).
    """


class OtherThreadError(MixgradError, RuntimeError):
    """An Array that one thread records is used in an op of another thread.

    Each thread has its own tape. Pass plain arrays between threads, or watch the value in the thread that uses it.

    >>> import mixgrad, threading
    >>> caught = []
    >>> def work(x):
    ...     try:
    ...         x * 2.0
    ...     except mixgrad.errors.OtherThreadError as error:
    ...         caught.append(error)
    >>> with mixgrad.Tape() as tape:
    ...     x = tape.watch(1.0)
    ...     thread = threading.Thread(target=work, args=(x,))
    ...     thread.start()
    ...     thread.join()
    >>> len(caught)
    1
    """


class ConversionError(MixgradError, TypeError):
    """A gradient that is being differentiated turns an Array into plain numbers, which would lose its own gradient.

    ``np.asarray(g)``, ``float(g)`` or ``g.item()`` inside a gradient give plain numbers; the second derivative through
    them would be missing, in silence. In a first-order backward pass gradients get plain arrays, and may do what they like.

    Fails:

    >>> import mixgrad, numpy as np
    >>> def gradient(op, g):
    ...     return g * np.cos(np.asarray(op.inputs[0]))
    >>> with mixgrad.override_gradient("sin", gradient):
    ...     mixgrad.grad(mixgrad.grad(np.sin))(0.5)
    Traceback (most recent call last):
    mixgrad.errors.ConversionError: ...

    Works:

    >>> with mixgrad.override_gradient("sin", lambda op, g: g * np.cos(op.inputs[0])):
    ...     round(float(mixgrad.grad(mixgrad.grad(np.sin))(0.5)), 6)
    -0.479426
    """


class UnsupportedError(MixgradError, TypeError):
    """What was asked has no meaning for an Array, or mixgrad does not have it: the message says what to do instead.

    Integer sources, ``out=``, a ufunc's ``where=``, in-place changes of an Array, and NumPy functions that mixgrad does not
    know.

    >>> import mixgrad, numpy as np
    >>> mixgrad.grad(lambda x: x * x)(3)
    Traceback (most recent call last):
    mixgrad.errors.UnsupportedError: ...
    >>> float(mixgrad.grad(lambda x: x * x)(3.0))
    6.0
    """


class CheckpointError(MixgradError, RuntimeError):
    """The second run of a checkpointed function did not do what the first did.

    `mixgrad.checkpoint` runs the function again in the backward pass. A function that draws random numbers, counts its
    calls or reads what has changed since gives another result, and its gradient would belong to neither run.

    >>> import mixgrad, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> mixgrad.grad(mixgrad.checkpoint(lambda x: x * rng.normal()))(1.0)
    Traceback (most recent call last):
    mixgrad.errors.CheckpointError: ...

    Draw outside, and pass the numbers in:

    >>> noise = 0.5
    >>> float(mixgrad.grad(mixgrad.checkpoint(lambda x: x * noise))(1.0))
    0.5
    """


class CheckError(MixgradError, AssertionError):
    """A check of `mixgrad.testing` found a difference. The message is the report: op, input, first element, both values.

    >>> import mixgrad, numpy as np
    >>> from mixgrad.testing import check_gradient
    >>> with mixgrad.override_gradient("sin", lambda op, g: g * np.sin(op.inputs[0])):
    ...     check_gradient(np.sin, 0.5)
    Traceback (most recent call last):
    mixgrad.errors.CheckError: ...
    >>> check_gradient(np.sin, 0.5)
    """


class GradientMismatchError(MixgradError, AssertionError):
    """A native gradient is not what the Python one gives, in a block of `mixgrad.debug.compare_gradients`.

    The message says which op, where it was called, who registered the two, and the elements. The Python gradient is the
    specification: use it (``mixgrad.prefer("python", "mul")``) until the native one is right.

    >>> import mixgrad
    >>> mixgrad.cpp.load_inline("MIXGRAD_REGISTER_GRADIENT(sin) { return {g}; }", replace=True)  # doctest: +SKIP
    >>> with mixgrad.debug.compare_gradients():  # doctest: +SKIP
    ...     mixgrad.grad(np.sin)(1.0)
    Traceback (most recent call last):
        ...
    mixgrad.errors.GradientMismatchError: op 'sin', called at ...
    """


class NonFiniteError(MixgradError, FloatingPointError):
    """An op or a gradient gave nan or inf, in a block of `mixgrad.debug.check_finite`.

    >>> import mixgrad, numpy as np
    >>> with np.errstate(all="ignore"), mixgrad.debug.check_finite():
    ...     mixgrad.grad(np.log)(-1.0)
    Traceback (most recent call last):
        ...
    mixgrad.errors.NonFiniteError: op 'log' (native), called at ..., gave nan. Inputs: float64[] from -1.0 to -1.0
    """


class ReplayError(MixgradError, ValueError):
    """A file is no saved gradient call, or its op is not registered: the message says what was found.

    >>> import mixgrad
    >>> mixgrad.debug.replay("nothing.npz")
    Traceback (most recent call last):
        ...
    mixgrad.errors.ReplayError: nothing.npz is not a saved gradient call: ...
    """


class SettingsError(MixgradError, ValueError):
    """The table ``[tool.mixgrad]`` of a pyproject.toml says what mixgrad does not understand, or is not there.

    The message names the file, what was found in it, and what is known.

    >>> from mixgrad.migrate import load_settings
    >>> load_settings("nowhere/pyproject.toml")
    Traceback (most recent call last):
        ...
    mixgrad.errors.SettingsError: nowhere/pyproject.toml cannot be read as TOML: ...
    """


class PluginError(MixgradError, ImportError):
    """A shared library is no plug-in, or was built for another version of mixgrad's native interface.

    >>> import mixgrad
    >>> mixgrad.cpp.load_library("/lib/nothing.so")
    Traceback (most recent call last):
        ...
    mixgrad.errors.PluginError: plug-in 'nothing' cannot be loaded: ...
    """


class CompileError(MixgradError, RuntimeError):
    """The compiler refused C++ source given to `mixgrad.cpp.load_inline` or `load`; the message has its words on your lines.

    >>> import mixgrad
    >>> mixgrad.cpp.load_inline("MIXGRAD_REGISTER_GRADIENT(mul) { return {g * z, g}; }", replace=True)  # doctest: +SKIP
    Traceback (most recent call last):
        ...
    mixgrad.errors.CompileError: the C++ source does not compile:
    inline.cpp:1:48: error: 'z' was not declared in this scope
    """


class PluginWarning(UserWarning):
    """A plug-in could not be loaded; everything else works. The warning names it and its error."""


class GradientMismatchWarning(UserWarning):
    """A native gradient is not what the Python one gives: the warning form of `GradientMismatchError`."""


class DemotionWarning(UserWarning):
    """A native gradient failed where Python's did not, and Python's runs from now on: see `mixgrad.set_promotion`.

    Told once per op; the message names the reason, and a file that reproduces it.
    """


class FallbackWarning(UserWarning):
    """A native gradient is registered and declined, so that the Python one ran. Told once per op, and only when asked for.

    `mixgrad.registry.explain` says why it declined.
    """
