# SPDX-License-Identifier: Apache-2.0
"""Nested containers of arrays: dict, list, tuple, NamedTuple, dataclass, and what is registered with optree.

optree is imported when the first container is met, never for plain arrays and numbers.
"""

from __future__ import annotations

import dataclasses
import numbers
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from mixgrad import _core

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Structure", "flatten", "is_leaf", "map_leaves", "paths"]

NAMESPACE = "mixgrad"

LEAF_TYPES = frozenset(
    {_core.Array, np.ndarray, float, complex, int, bool, np.float64, np.float32, np.complex128, np.complex64}
)


def _optree() -> Any:
    import optree  # noqa: PLC0415  programs without containers never pay for it

    return optree


def is_leaf(value: object) -> bool:
    """Whether `value` is one array or number, and not a container.

    >>> is_leaf(1.0), is_leaf([1.0])
    (True, False)
    """
    return type(value) in LEAF_TYPES or isinstance(value, (np.ndarray, np.generic, numbers.Number))


class Structure:
    """How leaves make up a container."""

    __slots__ = ("_spec", "count")

    def __init__(self, spec: Any, count: int) -> None:
        self._spec = spec
        self.count = count

    def unflatten(self, leaves: list[Any]) -> Any:
        """The container with these leaves in its places."""
        if self._spec is None:
            return leaves[0]
        return self._spec.unflatten(leaves)

    def flatten_as(self, value: Any) -> list[Any]:
        """What lies in the leaves' places of another container of this form; ValueError if it has another form."""
        if self._spec is None:
            return [value]
        return list(self._spec.flatten_up_to(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.count == other.count and bool(self._spec == other._spec)

    def __hash__(self) -> int:
        return hash((self._spec, self.count))

    def __repr__(self) -> str:
        if self._spec is None:
            return "one value"
        return str(self._spec).removeprefix("PyTreeSpec(").removesuffix(f", namespace={NAMESPACE!r})").removesuffix(")")


ONE = Structure(None, 1)


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a container, and how to put them back.

    >>> leaves, structure = flatten({"b": 1.0, "a": (2.0, 3.0)})
    >>> leaves
    [2.0, 3.0, 1.0]
    >>> structure.unflatten([0, 1, 2])
    {'b': 2, 'a': (0, 1)}
    """
    if is_leaf(value):
        return [value], ONE
    optree = _optree()
    while True:
        leaves, spec = optree.tree_flatten(value, namespace=NAMESPACE)
        unknown = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
        if not unknown:
            if len(leaves) == 1 and leaves[0] is value:
                return leaves, ONE
            return leaves, Structure(spec, len(leaves))
        for cls in unknown:
            _register_dataclass(cls)


def paths(value: Any) -> list[str]:
    """What to write after a container's name for each of its leaves, as ``['layers'][0]``.

    >>> paths({"w": [1.0, 2.0]})
    ["['w'][0]", "['w'][1]"]
    """
    if is_leaf(value):
        return [""]
    optree = _optree()
    flatten(value)  # registers the dataclasses in it
    return [accessor.codify("") for accessor in optree.tree_accessors(value, namespace=NAMESPACE)]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same container with `function` applied to each leaf.

    >>> map_leaves(lambda leaf: 2 * leaf, [1.0, {"a": 2.0}])
    [2.0, {'a': 4.0}]
    """
    if is_leaf(value):
        return function(value)
    leaves, structure = flatten(value)
    return structure.unflatten([function(leaf) for leaf in leaves])


_registered: set[type] = set()
_lock = threading.Lock()


def _register_dataclass(cls: type) -> None:
    """Makes a dataclass's fields children, but for those with ``metadata={"static": True}``."""
    optree = _optree()
    fields = dataclasses.fields(cls)
    static = tuple(field.name for field in fields if field.metadata.get("static"))
    children = tuple(field.name for field in fields if not field.metadata.get("static"))

    def to_children(instance: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...]]:
        return (
            tuple(getattr(instance, name) for name in children),
            tuple(getattr(instance, name) for name in static),
            children,
        )

    def from_children(constants: tuple[Any, ...], values: Any) -> Any:
        # Not through __init__: a __post_init__ that checks its arguments need not take gradients.
        instance: Any = object.__new__(cls)
        for name, value in zip(static + children, (*constants, *values), strict=True):
            object.__setattr__(instance, name, value)
        return instance

    with _lock:
        if cls not in _registered:
            optree.register_pytree_node(
                cls, to_children, from_children, path_entry_type=optree.DataclassEntry, namespace=NAMESPACE
            )
            _registered.add(cls)
