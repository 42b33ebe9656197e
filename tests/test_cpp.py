"""C++ gradients from outside: compiled from a string, loaded as a library, wrong in every way a gradient can be."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import cpp
from mixgrad.errors import (
    CompileError,
    DuplicateRegistrationError,
    GradientCountError,
    GradientDtypeError,
    GradientShapeError,
    NotDifferentiableError,
    PluginError,
    RegistrationError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXGRAD_CACHE", str(folder))
        yield folder


@pytest.fixture
def cube() -> Iterator[Any]:
    @mixgrad.register_op("test_cpp_cube", saves="x")
    def test_cpp_cube(x: Any) -> Any:
        return x**3

    yield test_cpp_cube
    mixgrad.unregister("test_cpp_cube")


def native(body: str, kind: str = "GRADIENT", **options: Any) -> None:
    """A native gradient of test_cpp_cube."""
    cpp.load_inline(f"MIXGRAD_REGISTER_{kind}(test_cpp_cube) {{\n{body}\n}}", **options)


RIGHT = "auto [x] = op.inputs<1>();\nreturn g * 3.0 * square(x);"


def test_a_gradient_from_a_string(cube: Any) -> None:
    native(RIGHT, name="test_right")
    assert mixgrad.grad(cube)(2.0) == 12.0
    assert mixgrad.grad(mixgrad.grad(cube))(2.0) == 12.0
    assert mixgrad.grad(mixgrad.grad(mixgrad.grad(cube)))(2.0) == 6.0
    assert "test_right (test_right.cpp:1)" in mixgrad.registry.explain("test_cpp_cube")
    x = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
    gradient = mixgrad.grad(lambda x: mnp.sum(cube(x) * mnp.exp(x)))(x)
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, (3 * x**2 + x**3) * np.exp(x), rtol=1e-5)


def test_the_same_source_is_loaded_from_the_cache(cube: Any, cache: Path) -> None:
    native(RIGHT, name="test_cached")
    before = sorted(cache.rglob("*.so"))
    native(RIGHT, name="test_cached", replace=True)
    assert sorted(cache.rglob("*.so")) == before
    native(RIGHT, name="test_cached", replace=True, extra_flags=["-DOTHER"])
    assert len(sorted(cache.rglob("*.so"))) == len(before) + 1


def test_loading_again_restores_what_was_unregistered() -> None:
    def register() -> Any:
        @mixgrad.register_op("test_cpp_again", saves="x", replace=True)
        def test_cpp_again(x: Any) -> Any:
            return x**3

        cpp.load_inline("MIXGRAD_REGISTER_GRADIENT(test_cpp_again) { return g * 3.0; }", name="test_again")
        return test_cpp_again

    try:
        # A cell of a notebook is run again; a module is reloaded.
        for _ in range(2):
            assert mixgrad.grad(register())(2.0) == 3.0
        mixgrad.unregister("test_cpp_again", "gradient", "native")
        assert mixgrad.grad(register())(2.0) == 3.0
    finally:
        mixgrad.unregister("test_cpp_again")


def test_a_name_is_no_path() -> None:
    with pytest.raises(ValueError, match=r"'\.\./x y' is no name for what is compiled"):
        cpp.load_inline("", name="../x y")


def test_replacing_in_a_notebook(cube: Any) -> None:
    native("return g * 1.0;", name="test_first")
    with pytest.raises(DuplicateRegistrationError, match="test_first"):
        native("return g * 2.0;", name="test_second")
    assert mixgrad.grad(cube)(2.0) == 1.0
    native("return g * 2.0;", name="test_second", replace=True)
    assert mixgrad.grad(cube)(2.0) == 2.0


def test_a_whole_op() -> None:
    cpp.load_inline(
        """
        static const NewOp test_cpp_scaled_{
            "test_cpp_scaled", "x, y, factor=2.0, *, shift=None", "x times y, scaled.", saves{"x y"},
            [](const Call& op) -> Results {
              auto [x, y] = op.inputs<2>();
              return x * y * op.attribute<double>("factor", 1.0);
            },
            [](const Call& op, const Array& g) -> Gradients {
              auto [x, y] = op.inputs<2>();
              const Array scaled = g * op.attribute<double>("factor", 1.0);
              return {scaled * y, scaled * x};
            },
            broadcasts};
        """,
        name="test_whole",
    )
    scaled = mixgrad.ops.test_cpp_scaled
    try:
        assert str(inspect.signature(scaled)) == "(x, y, factor=2.0, *, shift=None)"
        assert scaled.__doc__ == "x times y, scaled."
        assert scaled(2.0, 3.0) == 12.0
        np.testing.assert_array_equal(scaled(np.ones((2, 1)), np.ones(3), 5.0), np.full((2, 3), 5.0))
        gx, gy = mixgrad.grad(lambda x, y: mnp.sum(scaled(x, y)), (0, 1))(np.ones((2, 1)), np.ones(3))
        np.testing.assert_array_equal(gx, [[6.0], [6.0]])
        np.testing.assert_array_equal(gy, [4.0, 4.0, 4.0])
        assert mixgrad.grad(mixgrad.grad(lambda x: scaled(x, x)))(1.0) == 4.0
        with pytest.raises(TypeError, match="unexpected keyword argument 'fctor'"):
            scaled(1.0, 2.0, fctor=1.0)
    finally:
        mixgrad.unregister("test_cpp_scaled")


def test_a_rejected_list_leaves_nothing() -> None:
    before = list(mixgrad.registry)
    with pytest.raises(DuplicateRegistrationError):
        cpp.load_inline(
            'static const NewOp a_{"test_cpp_new", "x", "", saves{}, [](const Call& op) -> Results { return op.input(0); }};\n'
            "MIXGRAD_REGISTER_GRADIENT(sin) { return g; }",
            name="test_rejected",
        )
    with pytest.raises(RegistrationError, match=r"signature 'x, 3y'"):
        cpp.load_inline(
            'static const NewOp a_{"test_cpp_new", "x, 3y", "", saves{}, [](const Call& op) -> Results { return op.input(0); }};',
            name="test_signature",
        )
    assert list(mixgrad.registry) == before


# --- gradients that are wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ('throw std::runtime_error("boom");', RuntimeError, ["'test_cpp_cube'", "std::runtime_error", "boom"]),
        ('throw std::invalid_argument("odd");', ValueError, ["std::invalid_argument", "odd"]),
        ("throw std::bad_alloc();", MemoryError, ["bad_alloc"]),
        ("throw 3;", RuntimeError, ["int"]),
        ("return {g, g};", GradientCountError, ["returned 2 values", "1 input"]),
        ("return {};", GradientCountError, ["returned 0 values"]),
        ("return Array();", GradientCountError, ["nothing (None) for input 0"]),
        ("return sum(g);", GradientShapeError, ["returned shape () for input 0", "(3,)"]),
        ("return g > 0.0;", GradientDtypeError, ["dtype bool"]),
        ("return op.input(1);", IndexError, ["1 input", "input 1"]),
        ("return matmul(g, empty(Dtype::float64, {7}));", ValueError, ["matmul"]),
    ],
)
def test_what_goes_wrong(cube: Any, body: str, error: type[Exception], words: list[str]) -> None:
    native(body, name="test_wrong")
    before = mixgrad.debug.counters()
    with pytest.raises(error) as caught:
        mixgrad.grad(lambda x: mnp.sum(cube(x)))(np.ones(3))
    for word in words:
        assert word in str(caught.value)
    assert "test_wrong (test_wrong.cpp:1)" in "".join(caught.value.__notes__)
    del caught
    assert mixgrad.debug.counters() == before
    assert mixgrad.grad(lambda x: x * x)(3.0) == 6.0


def test_a_gradient_over_raw_memory(cube: Any) -> None:
    native(
        """
        const Array x = contiguous(op.input(0)), upstream = contiguous(g);
        Array out = empty_like(x);
        dispatch(x.dtype(), [&]<class T>() {
          const T* from = x.data<T>();
          const T* up = upstream.data<T>();
          T* to = out.mutable_data<T>();
          if constexpr (std::is_arithmetic_v<T>)
            parallel_for(x.size(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
              for (std::int64_t i = begin; i < end; ++i) to[i] = up[i] * 3 * from[i] * from[i];
            });
        });
        return out;
        """,
        kind="KERNEL_GRADIENT",
        name="test_raw",
    )
    x = np.linspace(-1.0, 1.0, 100_000)
    np.testing.assert_allclose(mixgrad.grad(lambda x: mnp.sum(cube(x)))(x), 3 * x**2)
    with pytest.raises(NotDifferentiableError, match="first order only"):
        mixgrad.grad(mixgrad.grad(cube))(2.0)


def test_a_gradient_that_keeps_a_reference() -> None:
    """It keeps that one value alive, and the counters show it. In a process of its own, since it never lets go."""
    program = """
import mixgrad
mixgrad.cpp.load_inline('MIXGRAD_REGISTER_GRADIENT(exp) { static Array kept; kept = g; return g * op.output(); }', replace=True)
before = mixgrad.debug.counters()["values"]
for _ in range(3):
    mixgrad.grad(mixgrad.numpy.exp)(0.0)
    print(mixgrad.debug.counters()["values"] - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "1"]


def test_from_eight_threads(cube: Any) -> None:
    native(RIGHT, name="test_threads")
    x = np.linspace(0.0, 1.0, 50)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(100):
            gradient = mixgrad.grad(lambda x: mnp.sum(cube(x)))(x)
            if not np.allclose(gradient, 3 * x**2):
                wrong.append(gradient)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- compiling and loading -------------------------------------------------------------------------------------------


def test_a_compile_error_shows_the_users_lines() -> None:
    with pytest.raises(CompileError) as caught:
        cpp.load_inline(
            "MIXGRAD_REGISTER_GRADIENT(sin) {\n  auto [x] = op.inputs<1>();\n  return g * cosine(x);\n}", name="mine"
        )
    text = str(caught.value)
    assert "mine.cpp:3:" in text
    assert "cosine" in text
    assert len(text.splitlines()) < 12
    assert "/" not in text.splitlines()[1]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises((CompileError, FileNotFoundError)):
        cpp.load_inline("// nothing", name="none")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompileError, match="apt-get install g"):
        cpp.load_inline("// nothing", name="none")


def test_files(tmp_path: Path, cube: Any) -> None:
    source = tmp_path / "gradients.cpp"
    source.write_text(
        f"#include <mixgrad/mixgrad.hpp>\nusing namespace mixgrad;\nMIXGRAD_REGISTER_GRADIENT(test_cpp_cube) {{ {RIGHT} }}\n"
    )
    cpp.load(source)
    assert mixgrad.grad(cube)(2.0) == 12.0
    assert "gradients (" in mixgrad.registry.explain("test_cpp_cube")


def test_what_is_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="cannot be loaded"):
        cpp.load_library(tmp_path / "nothing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(PluginError, match="cannot be loaded"):
        cpp.load_library(tmp_path / "text.so")
    with pytest.raises(PluginError, match="is no mixgrad plug-in"):
        cpp.load_library(mixgrad._core.__file__)
    assert issubclass(PluginError, ImportError)


@pytest.mark.parametrize(("major", "minor"), [(1, 99), (2, 0), (0, 7)])
def test_another_version_of_the_interface(cube: Any, major: int, minor: int) -> None:
    flags = [f"-DMIXGRAD_PLUGIN_MAJOR={major}", f"-DMIXGRAD_PLUGIN_MINOR={minor}"]
    with pytest.raises(
        PluginError, match=rf"version {major}\.{minor} of mixgrad's native interface .* this mixgrad .* has 1\.0"
    ):
        native(RIGHT, name="test_version", extra_flags=flags)
    assert "native  not registered" in mixgrad.registry.explain("test_cpp_cube")


def test_two_processes_at_once(tmp_path: Path) -> None:
    program = (
        "import mixgrad\n"
        "mixgrad.cpp.load_inline('MIXGRAD_REGISTER_GRADIENT(exp) { return g * op.output(); }', replace=True)\n"
        "print(float(mixgrad.grad(mixgrad.numpy.exp)(0.0)))\n"
    )

    def run(_: int) -> str:
        env = {**os.environ, "MIXGRAD_CACHE": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        ).stdout

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(run, range(3))) == ["1.0\n"] * 3
    assert len(list(tmp_path.rglob("*.so"))) == 1
