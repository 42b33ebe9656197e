# SPDX-License-Identifier: Apache-2.0
"""What a translation must not lose: each gradient here does something that one run on one sample does not show."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample, _core, registry
from mixgrad.migrate import scaffold, translate
from mixgrad.migrate.translation import prove_parity

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "#include <mixgrad/mixgrad.hpp>\n\nusing namespace mixgrad;\n\n"
HIDDEN = "it is not the same for all sample calls: shapes or values decide what it does"
FAMILIES = ("math", "reduce", "shape")
# Both forms, real and complex, attributes, shapes, several inputs, ties, helpers.
REPRESENTATIVE = (
    *("add", "divide", "power", "hypot", "arctan2", "logaddexp", "exp2", "tanh", "maximum", "fmax", "clip", "absolute"),
    *("sum", "mean", "std", "max", "reshape", "transpose", "roll", "angle", "imag", "nan_to_num"),
)


@pytest.fixture
def translated() -> Iterator[Any]:
    """Translates a gradient of one input, with one sample of three numbers in double precision."""

    def forward(x: Any, mode: str = "a", k: int = 2, rate: float = 0.5, flag: bool = True, scale: Any = None) -> Any:
        return 2.0 * x

    def translate_one(gradient: Any, forward: Any = forward, **options: Any) -> tuple[str, list[str]]:
        op = mixgrad.op(forward, name="scaffolded", samples=lambda: [Sample(np.array([1.0, 2.0, 4.0]))], replace=True)
        op.gradient()(gradient)
        text, gaps = translate(op, **options)
        return text.partition("{\n")[2].removesuffix("\n}"), gaps

    yield translate_one
    mixgrad.unregister("scaffolded")


@pytest.mark.parametrize("most", [3, 100])
def test_a_length_is_never_compared(translated: Any, most: int) -> None:
    """However far the bound is from the lengths that the samples have."""
    text, gaps = translated(lambda op, g: g * 2 if op.inputs[0].shape[0] > most else g)
    assert gaps == [f"the gradient of x: a length is compared with {most}: control flow that depends on shapes"]
    assert "return decline;" in text


@pytest.mark.parametrize(
    "gradient",
    [
        lambda op, g: g / math.sqrt(op.inputs[0].shape[0]),
        lambda op, g: g * int(op.inputs[0].shape[0]),
        lambda op, g: sum((g for _ in range(op.inputs[0].shape[0])), start=g),
    ],
    ids=["sqrt", "int", "loop"],
)
def test_a_shape_is_never_a_constant(translated: Any, gradient: Any) -> None:
    text, gaps = translated(gradient)
    assert gaps == [HIDDEN]
    assert text == "  return decline;  // GAP: shapes or values decide what the Python gradient does"


@pytest.mark.parametrize(
    ("gradient", "guard", "what"),
    [
        (
            lambda op, g: g * 3 if op.attributes["mode"] == "b" else g,
            'op.attribute<std::string>("mode") != "a"',
            "mode is not 'a': Python might do",
        ),
        (
            lambda op, g: g * 3 if op.attributes["k"] > 2 else g,
            'op.attribute<std::int64_t>("k") != 2',
            "k is not 2: Python does",
        ),
        (
            lambda op, g: g * op.attributes["rate"] ** 2,
            'op.attribute<double>("rate") != 0.5',
            "rate is not 0.5: Python does",
        ),
        (
            lambda op, g: g if op.attributes.get("flag") else -g,
            '!op.is("flag", true)',
            "flag is not True: Python does",
        ),
        (
            lambda op, g: g if dict(op.attributes)["scale"] is None else -g,
            '!op.is_none("scale")',
            "scale is not None: Python does",
        ),
        (
            lambda op, g: g * 2 if op.inputs[0].dtype == np.float32 else g,
            "op.output_dtype() != Dtype::float64",
            "the dtype is not float64: Python does",
        ),
        (
            lambda op, g: 1j * g if op.inputs[0].dtype.kind == "c" else g,
            "is_complex(op.output_dtype()) || is_complex(op.input_dtype(0))",
            "a dtype is complex: Python does",
        ),
        (
            lambda op, g: g * len(op.inputs[0].shape),
            "op.input_shape().size() != 1",
            "x does not have 1 axis: Python does",
        ),
    ],
    ids=["str", "int", "float", "bool", "None", "dtype", "complex", "axes"],
)
def test_what_decides_is_a_guard(translated: Any, gradient: Any, guard: str, what: str) -> None:
    text, gaps = translated(gradient)
    assert f"  if ({guard}) return decline;" in text.splitlines()
    assert f"it declines where {what} something else there" in gaps


def test_what_is_only_handed_on_needs_no_guard(translated: Any) -> None:
    def forward(x: Any, axis: int = 0) -> Any:
        return np.flip(x, axis)

    text, gaps = translated(lambda op, g: mnp.flip(g, op.attributes["axis"]), forward)
    assert (text, gaps) == ('  return call("flip", {g}, {op.pass("axis")});', [])


def test_a_constant_that_equals_an_attribute_is_no_attribute(translated: Any) -> None:
    def forward(x: Any, k: int = 0) -> Any:
        return 2.0 * x

    text, gaps = translated(lambda op, g: mnp.roll(g, 0 * op.attributes["k"], 0), forward)
    assert (text, gaps) == (
        '  return call("roll", {g}, {{"shift", 0 * op.attribute<std::int64_t>("k")}, {"axis", 0}});',
        [],
    )


def test_loops_cannot_decline(translated: Any) -> None:
    """What needs a guard is not fused."""
    text, gaps = translated(lambda op, g: g * 2 if op.inputs[0].dtype == np.float32 else g, fuse=True)
    assert "if (op.output_dtype() != Dtype::float64) return decline;" in text
    assert len(gaps) == 1


def test_samples_are_not_written_to() -> None:
    samples = [Sample(np.array([np.nan, 1.0]), copy=False)]
    with pytest.raises(ValueError, match="has no sample calls to trace"):
        translate(registry["nan_to_num"], samples)
    assert np.isnan(samples[0].args[0][0])


def test_complex_loops() -> None:
    assert '"tanh",\n' in translate(registry["tanh"], fuse=True)[0]
    assert '"hypot", real_only,\n' in translate(registry["hypot"], fuse=True)[0]


def test_a_loop_needs_one_of_its_own_numbers_in_the_first_place() -> None:
    op = mixgrad.op(np.square, name="scaffolded_relu", samples=lambda: [Sample(np.array([-1.0, 2.0]))])
    try:
        op.gradient()(lambda op, g: g * mnp.maximum(0, op.inputs[0]))
        assert "return g * maximum(x, 0.0);" in translate(op, fuse=True)[0]
    finally:
        mixgrad.unregister(op.name)


def test_own_gradients_that_are_translated() -> None:
    """At least 80 % of the element-wise ones, reductions and shapes."""
    ops = {
        op.name: op
        for family in FAMILIES
        for op in list(vars(sys.modules[f"mixgrad.ops.{family}"]).values())
        if isinstance(op, _core.Op) and op.differentiable and op.samples is not None and _core.python_gradient(op)
    }
    whole = [op for op in ops.values() if all(gap.startswith("it declines where") for gap in translate(op)[1])]
    assert len(ops) > 90
    assert len(whole) >= 0.8 * len(ops)


def test_representative_gradients_are_proved() -> None:
    """In one library; on their samples and on variations of them, in every dtype, to second order."""
    proved = prove_parity({name: HEAD + translate(registry[name])[0] + "\n" for name in REPRESENTATIVE})
    assert {name: failure for name, (failure, _) in proved.items() if failure} == {}
    assert all(parity["float64"] < 1e-14 for _, parity in proved.values())
    assert set(proved["power"][1]) == {"float32", "float64", "complex64", "complex128"}


def test_wrong_translations_are_refuted() -> None:
    """The proof sees a wrong function, a wrong argument, a small factor, and that nothing ran."""
    right = {name: HEAD + translate(registry[name])[0] + "\n" for name in ("sin", "multiply", "sum", "negative")}
    wrong = {
        "sin": right["sin"].replace("cos(x)", "sin(x)"),
        "multiply": right["multiply"].replace("g * y, g * x", "g * y, g * y"),
        "sum": right["sum"].replace("return broadcast_to(", "return 1.0000001 * broadcast_to("),
        "negative": right["negative"].replace("return -g", "return decline"),
    }
    assert all(wrong[name] != right[name] for name in wrong)
    proved = prove_parity(wrong)
    assert "parity in float64" in proved["sin"][0]
    assert "the gradient of input 1" in proved["multiply"][0]
    assert "parity in float64" in proved["sum"][0]
    assert "declines all" in proved["negative"][0]


def test_an_op_of_the_program_itself() -> None:
    program = (
        "import mixgrad, numpy as np\n"
        "op = mixgrad.op(lambda x: x * x, name='own', samples=lambda: [mixgrad.Sample(np.ones(2))])\n"
        "op.gradient()(lambda op, g: 2 * g * op.inputs[0])\n"
        "print(mixgrad.migrate.scaffold('own'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "op 'own': translated\n"
        "  not built: a program's own op; move it to a module, and name that (modules=, --module)\n"
    )


def test_given_samples_and_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "two_ops.py").write_text(
        "import numpy as np, mixgrad\n"
        "from mixgrad import Sample\n"
        "cube = mixgrad.op(lambda x: x**3, name='scaffold_cube')\n"
        "cube.gradient()(lambda op, g: 3 * g * op.inputs[0] * op.inputs[0])\n"
        "gap = mixgrad.op(np.square, name='scaffold_gap', samples=lambda: [Sample(np.ones(2))])\n"
        "gap.gradient(differentiable=False)(lambda op, g: g * 2 * np.asarray(op.inputs[0]))\n"
    )
    program = (
        "import numpy as np, two_ops\n"
        "from mixgrad import Sample, migrate\n"
        "print(migrate.scaffold('scaffold_cube', samples=[Sample(np.array([0.5, 2.0]))]))\n"
    )
    given = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert given.stdout.startswith("op 'scaffold_cube': translated\n  built; parity proved: float32 ("), given.stderr
    # The forward is native and ran; that says nothing of the gradient.
    command = [sys.executable, "-m", "mixgrad", "scaffold", "scaffold_gap", "--module", "two_ops", "--into", "made"]
    gap = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert gap.returncode == 1
    assert "op 'scaffold_gap': translated, with 1 gap\n  gap: the gradient of x: `asarray` is no op\n" in gap.stdout
    assert "the native gradient declines all" in gap.stdout


def test_the_summary() -> None:
    made = scaffold("std", prove=False)
    assert made.translated
    assert not made.fused
    assert str(made) == (
        "op 'std': translated\n"
        "  it declines where where is not True: Python does something else there\n"
        "  it declines where correction is not None: Python does something else there\n"
        "  not built"
    )
