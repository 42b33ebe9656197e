# SPDX-License-Identifier: Apache-2.0
"""Functions that take a function and return its derivatives, written with the tape."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mixgrad import _core
from mixgrad._tree import LEAF_TYPES, ONE, Structure, flatten, is_leaf, map_leaves
from mixgrad.errors import (
    CheckpointError,
    GradientCountError,
    GradientDtypeError,
    GradientShapeError,
    TargetError,
    UnsupportedError,
)
from mixgrad.registry import op
from mixgrad.tape import connect, jacobian_blocks, match, plain, upstream, watch_all, zeros_like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "checkpoint",
    "custom_gradient",
    "elementwise_grad",
    "grad",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "stop_gradient",
    "value_and_grad",
    "vjp",
]

Array = _core.Array
Window = _core.Window
F = TypeVar("F", bound="Callable[..., Any]")
Argnum = int | tuple[int, ...]


def grad(
    f: Callable[..., Any], argnum: Argnum = 0, *, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The gradient of a function that returns one real number.

    Parameters
    ----------
    f : callable
        Takes arrays, numbers, or containers of them, and returns a real number.
    argnum : int or tuple of int
        The positional argument to differentiate with respect to. For a tuple the result is a tuple.
    has_aux : bool
        Whether `f` returns ``(value, aux)``: the result is then ``(gradient, aux)``.
    holomorphic : bool
        Declares that `f` is a holomorphic function of complex arguments: it may then return a complex number, and the
        result is its complex derivative.

    Returns
    -------
    callable
        Called as `f` is. The gradient has the argument's shape and dtype; for a container it is such a container. It can be
        differentiated again.

    Notes
    -----
    For complex ``z = x + iy`` and a real result, the gradient is ``df/dx - i df/dy``, as in autograd and JAX.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> mixgrad.grad(lambda x: np.sum(x**2))(np.array([1.0, 2.0]))
    array([2., 4.])
    >>> float(mixgrad.grad(mixgrad.grad(lambda x: x**3))(2.0))
    12.0
    """
    both = value_and_grad(f, argnum, has_aux=has_aux, holomorphic=holomorphic)
    if has_aux:

        def gradient(*args: Any, **kwargs: Any) -> Any:
            (_, aux), gradient = both(*args, **kwargs)
            return gradient, aux

    else:

        def gradient(*args: Any, **kwargs: Any) -> Any:
            return both(*args, **kwargs)[1]

    return _named(gradient, "grad", f)


def value_and_grad(
    f: Callable[..., Any], argnum: Argnum = 0, *, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The value of a function together with its gradient, as SciPy's ``minimize(..., jac=True)`` takes them.

    Parameters are those of `grad`. With ``has_aux=True`` the result is ``((value, aux), gradient)``.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> f = mixgrad.value_and_grad(lambda x: np.sum(x**2))
    >>> f(np.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    >>> def loss(x):
    ...     residual = x - 1.0
    ...     return np.sum(residual**2), residual
    >>> mixgrad.value_and_grad(loss, has_aux=True)(np.array([1.0, 2.0]))
    ((np.float64(1.0), array([0., 1.])), array([0., 2.]))
    """
    if holomorphic or has_aux or isinstance(argnum, tuple):
        return _named(_general(f, argnum, has_aux, holomorphic), "value_and_grad", f)
    general = _general(f, argnum, has_aux, holomorphic)

    def both(*args: Any, **kwargs: Any) -> Any:
        # The common case, one array or number, kept short: this is what an optimiser calls.
        try:
            source = args[argnum]
        except IndexError:
            raise _no_argument("value_and_grad", f, argnum, args) from None
        if type(source) not in LEAF_TYPES and not is_leaf(source):
            return general(*args, **kwargs)
        window = Window()
        window.start()
        try:
            x = window.watch(source)
            y = f(x, *args[1:], **kwargs) if argnum == 0 else f(*_replaced(args, argnum, x), **kwargs)
            window.stop()
            if type(y) is Array and window.depends(y):
                if y.size != 1 or y.dtype.kind == "c":
                    raise _wrong_target(y, "grad", f)
                (gradient,) = window.gradient([y], [x], [None])
                if gradient is None:
                    gradient = zeros_like(x)
            else:
                _check_constant_target(y, "grad", f)
                gradient = zeros_like(x)
        finally:
            window.close()
        return plain(y), gradient

    return _named(both, "value_and_grad", f)


def _general(f: Callable[..., Any], argnum: Argnum, has_aux: bool, holomorphic: bool) -> Callable[..., Any]:
    """`value_and_grad` with all that it can do."""

    def both(*args: Any, **kwargs: Any) -> Any:
        window = Window()
        window.start()
        try:
            args, leaves, structure = _watch_arguments(window, "grad", f, args, argnum)
            if holomorphic:
                _check_holomorphic_sources(leaves, "grad", f)
            y = f(*args, **kwargs)
            aux = None
            if has_aux:
                y, aux = _split_aux(y, "grad", f)
            window.stop()
            if type(y) is Array and window.depends(y):
                if y.size != 1 or (y.dtype.kind == "c" and not holomorphic):
                    raise _wrong_target(y, "grad", f)
                gradients = window.gradient([y], leaves, [np.ones(y.shape, y.dtype) if holomorphic else None])
            else:
                _check_constant_target(y, "grad", f)
                gradients = [None] * len(leaves)
            gradients = connect(gradients, leaves, "zero", None)
        finally:
            window.close()
        value = (plain(y), map_leaves(plain, aux)) if has_aux else plain(y)
        return value, structure.unflatten(gradients)

    return both


def elementwise_grad(f: Callable[..., Any], argnum: Argnum = 0) -> Callable[..., Any]:
    """The gradient of the sum of a function's outputs: of a function that acts on each element, its derivative there.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> mixgrad.elementwise_grad(np.square)(np.array([1.0, 2.0, 3.0]))
    array([2., 4., 6.])
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        window = Window()
        window.start()
        try:
            args, leaves, structure = _watch_arguments(window, "elementwise_grad", f, args, argnum)
            outputs, _ = flatten(f(*args, **kwargs))
            window.stop()
            targets = [y for y in outputs if type(y) is Array and window.depends(y)]
            for y in outputs:
                if np.iscomplexobj(y):
                    raise _wrong_target(y, "elementwise_grad", f)
            gradients = window.gradient(targets, leaves, [None] * len(targets)) if targets else [None] * len(leaves)
            return structure.unflatten(connect(gradients, leaves, "zero", None))
        finally:
            window.close()

    return _named(gradient, "elementwise_grad", f)


def vjp(f: Callable[..., Any], *args: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluates a function and gives the map from the gradient of its output to those of its arguments.

    Parameters
    ----------
    f : callable
        Takes arrays, numbers, or containers of them, and returns the same.
    *args
        Its arguments; all are differentiated.
    has_aux : bool
        Whether `f` returns ``(output, aux)``; the result is then ``(output, pull, aux)``.

    Returns
    -------
    output
        What `f` returned.
    pull : callable
        Takes the gradient of the output, of the output's shape, and returns that of the argument; a tuple for several arguments.
        May be called repeatedly; what was recorded lives as long as it does.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> output, pull = mixgrad.vjp(np.sin, np.array([0.0, np.pi]))
    >>> pull(np.array([1.0, 10.0]))
    array([  1., -10.])
    """
    if not args:
        raise TypeError(f"vjp({_name(f)}) needs the arguments at which to evaluate it")
    window = Window(True)
    window.start()
    try:
        argnum: Argnum = 0 if len(args) == 1 else tuple(range(len(args)))
        watched, leaves, structure = _watch_arguments(window, "vjp", f, args, argnum)
        result = f(*watched)
        aux = None
        if has_aux:
            result, aux = _split_aux(result, "vjp", f)
        window.stop()
    except BaseException:
        window.close()
        raise
    outputs, output_structure = flatten(result)
    recorded = [i for i, y in enumerate(outputs) if type(y) is Array and window.depends(y)]
    targets = [outputs[i] for i in recorded]
    likes = [np.empty(np.shape(y), np.result_type(y)) if i not in recorded else y for i, y in enumerate(outputs)]
    del result, watched

    def pull(g: Any) -> Any:
        """From the gradient of the output to that of the arguments."""
        if g is None:
            raise GradientShapeError("the gradient of the output is needed, not None; pass ones for a plain sum")
        matched = upstream(likes, output_structure, g)
        gradients = (
            window.gradient(targets, leaves, [matched[i] for i in recorded]) if targets else [None] * len(leaves)
        )
        return structure.unflatten(connect(gradients, leaves, "zero", None))

    value = output_structure.unflatten([plain(y) for y in outputs])
    return (value, pull, map_leaves(plain, aux)) if has_aux else (value, pull)


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False
) -> tuple[Any, ...]:
    """Evaluates a function and its directional derivative.

    A gradient is linear in what arrives at the output, and the transpose of that map is the directional derivative: the
    backward pass is recorded and differentiated once more. So every op on the way needs a gradient that is differentiable.

    Parameters
    ----------
    f : callable
        Takes arrays, numbers, or containers of them, and returns the same.
    primals : tuple or list
        Its arguments.
    tangents : tuple or list
        The direction, one for each argument, of the same shapes.
    has_aux : bool
        Whether `f` returns ``(output, aux)``; the result is then ``(output, derivative, aux)``.

    Returns
    -------
    output
        What `f` returned.
    derivative
        Its derivative in that direction, of the output's shape.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> x = np.array([1.0, 2.0])
    >>> mixgrad.jvp(lambda x: x * x, (x,), (np.array([1.0, 0.5]),))
    (array([1., 4.]), array([2., 2.]))
    """
    for given, what in ((primals, "primals"), (tangents, "tangents")):
        if not isinstance(given, (tuple, list)):
            raise TypeError(
                f"jvp takes {what} as a tuple with one value per argument of {_name(f)}, not a {type(given).__name__}"
            )
    directions, direction_structure = flatten(tuple(tangents))
    inner, outer = Window(), Window()
    inner.start()
    try:
        watched, leaves, _ = _watch_arguments(inner, "jvp", f, tuple(primals), tuple(range(len(primals))))
        if direction_structure != flatten(tuple(primals))[1]:
            raise GradientShapeError(
                f"jvp needs a tangent for each value in primals: {flatten(tuple(primals))[1]} was expected, "
                f"{direction_structure} found"
            )
        directions = [match(v, x, "a tangent of jvp") for v, x in zip(directions, leaves, strict=True)]
        result = f(*watched)
        aux = None
        if has_aux:
            result, aux = _split_aux(result, "jvp", f)
        inner.stop()
        outputs, output_structure = flatten(result)
        recorded = [i for i, y in enumerate(outputs) if type(y) is Array and inner.depends(y)]
        derivatives: list[Any] = [
            None if i in recorded else np.zeros(np.shape(y), np.result_type(y))[()] for i, y in enumerate(outputs)
        ]
        if recorded:
            outer.start()
            targets = [outputs[i] for i in recorded]
            arriving = [outer.watch(np.ones(y.shape, y.dtype)) for y in targets]
            gradients = inner.gradient(targets, leaves, arriving)
            outer.stop()
            pairs = [
                (g, v) for g, v in zip(gradients, directions, strict=True) if type(g) is Array and outer.depends(g)
            ]
            found: list[Any] = [None] * len(targets)
            if pairs:
                found = outer.gradient([g for g, _ in pairs], arriving, [v for _, v in pairs])
            for i, derivative in zip(recorded, connect(found, targets, "zero", None), strict=True):
                derivatives[i] = derivative
    finally:
        inner.close()
        outer.close()
    value = output_structure.unflatten([plain(y) for y in outputs])
    derivative = output_structure.unflatten(derivatives)
    return (value, derivative, map_leaves(plain, aux)) if has_aux else (value, derivative)


def jacobian(f: Callable[..., Any], argnum: Argnum = 0, *, holomorphic: bool = False) -> Callable[..., Any]:
    """The matrix of all derivatives of a function's output: an array of shape ``output.shape + argument.shape``.

    For containers it is the output's container, holding in each place the argument's container of such arrays.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> mixgrad.jacobian(lambda x: x * x[::-1])(np.array([1.0, 2.0]))
    array([[2., 1.],
           [2., 1.]])
    """

    def matrix(*args: Any, **kwargs: Any) -> Any:
        window = Window()
        window.start()
        try:
            args, leaves, structure = _watch_arguments(window, "jacobian", f, args, argnum)
            if holomorphic:
                _check_holomorphic_sources(leaves, "jacobian", f)
            outputs, output_structure = flatten(f(*args, **kwargs))
            window.stop()
            blocks = []
            for i, y in enumerate(outputs):
                if not holomorphic and np.iscomplexobj(y):
                    raise _wrong_target(y, "jacobian", f)
                if type(y) is Array and window.depends(y):
                    rows = jacobian_blocks(window, y, leaves, keep=i + 1 < len(outputs))
                else:
                    rows = [None] * len(leaves)
                blocks.append(structure.unflatten(connect(rows, leaves, "zero", None, np.shape(y))))
            return output_structure.unflatten(blocks)
        finally:
            window.close()

    return _named(matrix, "jacobian", f)


def hessian(f: Callable[..., Any], argnum: Argnum = 0, *, holomorphic: bool = False) -> Callable[..., Any]:
    """The matrix of second derivatives of a function that returns one real number.

    Its shape is the argument's shape twice; for containers see `jacobian`.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> mixgrad.hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """
    return _named(jacobian(grad(f, argnum, holomorphic=holomorphic), argnum, holomorphic=holomorphic), "hessian", f)


def hvp(f: Callable[..., Any], argnum: int = 0) -> Callable[..., Any]:
    """The product of a function's matrix of second derivatives with a vector, without that matrix.

    The returned function takes the arguments of `f` and then the vector, which has the shape (or is such a container) of the
    argument: SciPy's ``minimize(..., hessp=mixgrad.hvp(f))``.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> product = mixgrad.hvp(lambda x: x[0] ** 2 * x[1])
    >>> product(np.array([1.0, 3.0]), np.array([1.0, 0.0]))
    array([6., 2.])
    """
    gradient = grad(f, argnum)

    def product(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 2:
            raise TypeError(
                f"hvp({_name(f)}) takes the arguments of {_name(f)} and then the vector; {len(args)} were given"
            )
        *arguments, vector = args
        window = Window()
        window.start()
        try:
            watched, leaves, structure = _watch_arguments(window, "hvp", f, tuple(arguments), argnum)
            vectors, found = flatten(vector)
            if found != structure:
                raise GradientShapeError(
                    f"the vector of hvp must be given as the argument is: {structure}, not {found}"
                )
            vectors = [match(v, x, "the vector of hvp") for v, x in zip(vectors, leaves, strict=True)]
            slopes, _ = flatten(gradient(*watched, **kwargs))
            window.stop()
            pairs = [(g, v) for g, v in zip(slopes, vectors, strict=True) if type(g) is Array and window.depends(g)]
            gradients: list[Any] = [None] * len(leaves)
            if pairs:
                gradients = window.gradient([g for g, _ in pairs], leaves, [v for _, v in pairs])
            return structure.unflatten(connect(gradients, leaves, "zero", None))
        finally:
            window.close()

    return _named(product, "hvp", f)


def stop_gradient(value: Any) -> Any:
    """The same value (or container of values) as a constant: gradients do not pass.

    Examples
    --------
    >>> import mixgrad
    >>> float(mixgrad.grad(lambda x: x * mixgrad.stop_gradient(x))(3.0))
    3.0
    """
    return map_leaves(lambda leaf: _core.constant(leaf) if type(leaf) is Array else leaf, value)


class _Run:
    """One call of a checkpointed function: what a second run of it needs, and must agree with."""

    __slots__ = ("args", "context", "count", "f", "inputs", "kwargs", "outputs", "structure", "where")

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.f, self.args, self.kwargs = f, args, kwargs
        self.context = contextvars.copy_context()
        self.structure: Structure = ONE
        self.where: list[int] = []
        self.inputs: list[_core.Array] = []
        self.count = 0
        self.outputs: list[Any] | None = None


def _checkpoint_forward(arrays: Sequence[Any], *, run: _Run) -> list[Any]:  # noqa: ARG001
    # The function has run already, recorded by no tape but its own: here are the results.
    outputs = run.outputs
    run.outputs = None
    assert outputs is not None
    return outputs


_checkpoint = op(_checkpoint_forward, name="checkpoint", inputs="*arrays", saves="output", multiple=True)


def _checkpoint_gradient(op: Any, g: Any) -> Any:
    run: _Run = op.attributes["run"]
    window = Window(False, True)
    window.start()
    try:
        # Overrides that were in force in the first run are in force in the second, as on any entry: look for them.
        _core.overrides_changed(1)
        try:
            result = run.context.copy().run(run.f, *run.args, **run.kwargs)
        finally:
            _core.overrides_changed(-1)
        window.stop()
        leaves, structure = flatten(result)
        _check_second_run(run, window, leaves, structure, op.outputs)
        gradients = window.gradient([leaves[i] for i in run.where], run.inputs, list(g))
        return connect(gradients, run.inputs, "zero", None)
    finally:
        window.close()


_checkpoint.gradient()(_checkpoint_gradient)


def _check_second_run(
    run: _Run, window: _core.Window, leaves: list[Any], structure: Structure, outputs: Sequence[Any]
) -> None:
    inputs = window.external_inputs()
    if structure != run.structure:
        found = f"it returned {run.structure} first, then {structure}"
    elif len(inputs) != len(run.inputs) or not all(map(_core.same, inputs, run.inputs)):
        found = f"it used {len(run.inputs)} tracked values first, then {len(inputs)} or others"
    elif [i for i, y in enumerate(leaves) if type(y) is Array and window.depends(y)] != run.where:
        found = "other outputs depend on its arguments"
    elif window.n_entries != run.count:
        found = f"it called {run.count} ops first, then {window.n_entries}"
    else:
        for i, before in zip(run.where, outputs, strict=True):
            difference = _difference(_core.value(leaves[i]), np.asarray(plain_value(before)))
            if difference:
                found = f"output {i} {difference}"
                break
        else:
            return
    raise CheckpointError(
        f"the second run of {_name(run.f)}, for its gradient, differs from the first: {found}. A checkpointed function must do "
        "the same each time: draw random numbers outside and pass them in, and read nothing that changes"
    )


def _difference(now: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> str:
    if now.shape != before.shape or now.dtype != before.dtype:
        return f"was {before.dtype}{list(before.shape)}, then {now.dtype}{list(now.shape)}"
    # BLAS may add up in another order from one call to the next, depending on where the memory lies.
    tolerance = 1e4 * np.finfo(now.dtype).eps
    scale = np.max(np.abs(before), initial=0.0, where=np.isfinite(before))
    close = np.isclose(now, before, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if close.all():
        return ""
    first = tuple(map(int, np.argwhere(~close)[0]))
    return f"was {before[first]!s} at {list(first)}, then {now[first]!s}"


def plain_value(value: Any) -> Any:
    """The numbers of an Array, whether or not a tape records it."""
    return _core.value(value) if type(value) is Array else value


def checkpoint(f: F) -> F:
    """Makes a function keep only its inputs for the backward pass, and run again there: memory for time.

    Everything tracked that `f` uses counts as an input, what it uses from its surroundings too. `f` must do the same each
    time it runs.

    Examples
    --------
    >>> import mixgrad, numpy as np
    >>> @mixgrad.checkpoint
    ... def block(x):
    ...     for _ in range(10):
    ...         x = np.sin(x)
    ...     return x
    >>> plain = mixgrad.grad(lambda x: block.__wrapped__(x))(0.5)
    >>> bool(mixgrad.grad(block)(0.5) == plain)
    True
    """

    @functools.wraps(f)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        window = Window(False, True, True)
        window.start()
        try:
            run = _Run(f, args, kwargs)
            result = f(*args, **kwargs)
            window.stop()
            leaves, run.structure = flatten(result)
            run.where = [i for i, y in enumerate(leaves) if type(y) is Array and window.depends(y)]
            run.inputs = window.external_inputs()
            run.count = window.n_entries
        finally:
            window.close()
        if not run.where:
            return result
        run.outputs = [_core.value(leaves[i]) for i in run.where]
        for i, y in zip(run.where, _checkpoint(run.inputs, run=run), strict=True):
            leaves[i] = y
        return run.structure.unflatten(leaves)

    return checkpointed  # type: ignore[return-value]


class _Custom:
    """One call of a function with a gradient of its own."""

    __slots__ = ("f", "gradient", "outputs", "places", "structure", "structures")

    def __init__(self, f: Callable[..., Any], gradient: Callable[[Any], Any], structure: Structure) -> None:
        self.f, self.gradient, self.structure = f, gradient, structure
        self.outputs: list[Any] | None = None
        #: Of each argument how its gradient is made up, and which of its leaves are inputs of the op.
        self.structures: list[Structure] = []
        self.places: list[list[int]] = []


def _custom_forward(arrays: Sequence[Any], *, call: _Custom) -> list[Any]:  # noqa: ARG001
    outputs = call.outputs
    call.outputs = None
    assert outputs is not None
    return outputs


_custom = op(_custom_forward, name="custom_gradient", inputs="*arrays", saves="", multiple=True)


def _custom_gradient(op: Any, g: Any) -> Any:
    call: _Custom = op.attributes["call"]
    returned = call.gradient(call.structure.unflatten(list(g)))
    count = len(call.structures)
    where = _place(call.gradient)
    who = f"the gradient of {_name(call.f)} ({where})"
    many = isinstance(returned, (tuple, list))
    if count == 1 and not (many and call.structures[0] is ONE):
        returned = (returned,)
    elif not many:
        raise GradientCountError(
            f"{who} returned a single {type(returned).__name__}, but the function has {count} arguments; return a tuple with one "
            "value per argument (None for one that is not differentiated)"
        )
    if len(returned) != count:
        values, arguments = ("value" if len(returned) == 1 else "values"), ("argument" if count == 1 else "arguments")
        raise GradientCountError(
            f"{who} returned {len(returned)} {values}, but the function has {count} {arguments}; return one per argument (None for "
            "one that is not differentiated)"
        )
    results: list[Any] = []
    for number, (one, structure, places) in enumerate(zip(returned, call.structures, call.places, strict=True)):
        if not places:
            continue
        try:
            leaves = [None] * structure.count if one is None else structure.flatten_as(one)
        except ValueError as error:
            raise GradientShapeError(
                f"{who} returned {flatten(one)[1]} for argument {number}; it must be made up as the argument: {structure}"
            ) from error
        for place in places:
            i = len(results)
            like = op.inputs[i]
            results.append(
                _check_custom(leaves[place], like, f"{who} returned", f"argument {number}", op.needs_gradient(i))
            )
    return results


_custom.gradient()(_custom_gradient)


def _check_custom(gradient: Any, like: Any, who: str, argument: str, needed: bool) -> Any:
    if gradient is None:
        if not needed:
            return None
        raise GradientCountError(f"{who} None for {argument}, whose gradient is needed; return zeros if it is zero")
    if isinstance(gradient, (bool, int)):
        gradient = float(gradient)
    if np.shape(gradient) != like.shape:
        raise GradientShapeError(
            f"{who} shape {np.shape(gradient)} for {argument}, which has shape {like.shape}; sum or reshape it to the argument's shape"
        )
    dtype = gradient.dtype if type(gradient) is Array else np.asarray(gradient).dtype
    if dtype.kind not in "fc":
        raise GradientDtypeError(
            f"{who} dtype {dtype} for {argument}, which has dtype {like.dtype}; return an array of a float or complex dtype"
        )
    return gradient


def custom_gradient(f: F) -> F:
    """Makes a function that brings its own gradient: `f` returns ``(value, gradient)``.

    ``gradient`` is called with the gradient of the value (of the same shape, or such a container) and returns one value per
    positional argument, of its shape. Written with `mixgrad.numpy` or operators it can be differentiated again. Keyword
    arguments are not differentiated. What `f` uses of tracked values must be among its arguments.

    Examples
    --------
    >>> import mixgrad, mixgrad.numpy as mnp
    >>> @mixgrad.custom_gradient
    ... def log1pexp(x):
    ...     e = mnp.exp(x)
    ...     return mnp.log(1.0 + e), lambda g: g * (1.0 - 1.0 / (1.0 + e))
    >>> float(mixgrad.grad(log1pexp)(100.0))
    1.0
    """

    @functools.wraps(f)
    def custom(*args: Any, **kwargs: Any) -> Any:
        window = Window(False, True)
        window.start()
        try:
            inputs: list[_core.Array] = []
            structures, places, watched = [], [], []
            for argument in args:
                leaves, structure = flatten(argument)
                tracked = [i for i, leaf in enumerate(leaves) if type(leaf) is Array]
                for i in tracked:
                    leaves[i] = window.watch(leaves[i])
                inputs += [leaves[i] for i in tracked]
                structures.append(structure)
                places.append(tracked)
                watched.append(structure.unflatten(leaves))
            returned = f(*watched, **kwargs)
            window.stop()
            if not (isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])):
                raise TypeError(
                    f"{_name(f)} is declared with custom_gradient: it must return (value, gradient), a value and a function; it "
                    f"returned a {type(returned).__name__}"
                )
            value, gradient = returned
            outside = window.external_inputs()
            if outside:
                raise UnsupportedError(
                    f"{_name(f)} uses {len(outside)} tracked value{'s' if len(outside) > 1 else ''} from outside (the first has shape "
                    f"{outside[0].shape}), and its custom gradient would lose their gradients; pass them as positional arguments, "
                    "or through stop_gradient"
                )
        finally:
            window.close()
        outputs, structure = flatten(value)
        if not inputs:
            return structure.unflatten([plain(y) for y in outputs])
        call = _Custom(f, gradient, structure)
        call.structures, call.places = structures, places
        call.outputs = [plain_value(y) for y in outputs]
        return structure.unflatten(list(_custom(inputs, call=call)))

    return custom  # type: ignore[return-value]


def _watch_arguments(
    window: _core.Window, transform: str, f: Callable[..., Any], args: tuple[Any, ...], argnum: Argnum
) -> tuple[tuple[Any, ...], list[Any], Structure]:
    """The arguments with those at `argnum` watched, their leaves, and how a gradient is made up of such leaves."""
    numbers = (argnum,) if isinstance(argnum, int) else tuple(argnum)
    arguments = list(args)
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise _no_argument(transform, f, number, args)
        value = args[number]
        name = f"argument {number} of {_name(f)}"
        arguments[number] = window.watch(value) if is_leaf(value) else watch_all(window, value, name)
    sources = arguments[argnum] if isinstance(argnum, int) else tuple(arguments[number] for number in numbers)
    leaves, structure = flatten(sources)
    return tuple(arguments), leaves, structure


def _replaced(args: tuple[Any, ...], number: int, value: Any) -> list[Any]:
    arguments = list(args)
    arguments[number] = value
    return arguments


def _split_aux(result: Any, transform: str, f: Callable[..., Any]) -> tuple[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise TypeError(
        f"{transform}({_name(f)}, has_aux=True) needs a function that returns (value, aux); it returned a {type(result).__name__}"
    )


def _check_holomorphic_sources(sources: Sequence[Any], transform: str, f: Callable[..., Any]) -> None:
    for source in sources:
        if source.dtype.kind != "c":
            raise UnsupportedError(
                f"{transform}({_name(f)}, holomorphic=True) needs complex arguments; one has dtype {source.dtype}. "
                "Convert it (x + 0j), or leave holomorphic out"
            )


def _check_constant_target(y: Any, transform: str, f: Callable[..., Any]) -> None:
    """A value that depends on no source has gradient zero, but it must be one real number as any."""
    if not is_leaf(y) or np.size(y) != 1 or np.result_type(y).kind not in "biuf":
        raise _wrong_target(y, transform, f)


def _wrong_target(y: Any, transform: str, f: Callable[..., Any]) -> TargetError:
    name = _name(f)
    if not is_leaf(y):
        found = "None" if y is None else f"a {type(y).__name__}"
        aux = ", and has_aux=True one that returns (value, aux)" if isinstance(y, tuple) and len(y) == 2 else ""
        return TargetError(
            f"{transform} differentiates a function that returns one real number{aux}; {name} returned {found}"
        )
    if np.size(y) != 1 and transform == "grad":
        return TargetError(
            f"grad differentiates a function that returns one real number; {name} returned an array of shape {np.shape(y)}. "
            "Use elementwise_grad for the gradient of the sum, jacobian for all derivatives, or return one number (a sum, a mean)"
        )
    return TargetError(
        f"{transform} differentiates a function that returns real numbers; {name} returned dtype {np.result_type(y)}. Take its real "
        "part or its absolute value, or declare a holomorphic function of complex arguments with holomorphic=True"
    )


def _no_argument(transform: str, f: Callable[..., Any], number: int, args: tuple[Any, ...]) -> TypeError:
    count = f"{len(args)} positional argument{'' if len(args) == 1 else 's'}"
    return TypeError(
        f"{transform}({_name(f)}) differentiates argument {number}, but was called with {count}; pass it by position"
    )


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__qualname__", None) or getattr(f, "__name__", None) or repr(f)


def _place(f: Callable[..., Any]) -> str:
    code = getattr(f, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(f)


def _named(transformed: Callable[..., Any], transform: str, f: Callable[..., Any]) -> Callable[..., Any]:
    transformed.__name__ = f"{transform}({getattr(f, '__name__', type(f).__name__)})"
    transformed.__qualname__ = transformed.__name__
    transformed.__doc__ = f"{transform} of `{_name(f)}`, called as it is."
    return transformed
