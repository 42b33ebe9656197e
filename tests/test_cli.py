# SPDX-License-Identifier: Apache-2.0
"""The command line and the demo."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mixgrad
from mixgrad import demo
from mixgrad.cli import app

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 4, 4)).astype(np.uint8)
LABELS = np.arange(40) % 3


def run(*arguments: str) -> tuple[int, str]:
    """The exit code, and all that is printed."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_version() -> None:
    assert run("--version") == (0, f"{mixgrad.__version__}\n")


def test_includes_has_the_headers() -> None:
    code, folder = run("--includes")
    assert code == 0
    assert (Path(folder.strip()) / "mixgrad" / "mixgrad.hpp").is_file()


def test_registry_is_a_table_of_all_ops() -> None:
    code, table = run("registry")
    assert code == 0
    assert table.split("\n", 1)[0].split() == ["op", "aliases", "forward", "gradient", "runs"]
    (multiply,) = [line for line in table.splitlines() if line.startswith("multiply ")]
    assert " ".join(multiply.split()) == "multiply mul native + python native + python native"
    assert len(table.splitlines()) == len(mixgrad.registry) + 2


def test_explain_takes_aliases() -> None:
    code, text = run("registry", "--explain", "mul")
    assert code == 0
    assert text == mixgrad.registry.explain("multiply") + "\n"


def test_explain_of_an_unknown_op_names_near_ones() -> None:
    code, text = run("registry", "--explain", "multipy")
    assert code == 2
    assert "no op named 'multipy'" in text
    assert "'multiply'" in text


def test_demo_trains_four_times_to_the_same_network(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="needs the extra 'examples'")
    results = demo.run(epochs=2)
    native, python, mixed, own = (results[name] for name in ("native", "python", "mixed", "own mul"))
    for r in results.values():
        np.testing.assert_allclose(r.loss, native.loss, rtol=1e-5)
        assert abs(r.accuracy - native.accuracy) <= 0.01
        assert r.native + r.python + r.overridden == native.native
        assert r.milliseconds > 0
    assert native.accuracy > 0.7
    assert (native.python, native.overridden, python.native, python.overridden) == (0, 0, 0, 0)
    assert min(mixed.native, mixed.python, own.native, own.overridden) > 0
    table = capsys.readouterr().out
    for text in (
        "native",
        "python",
        "mixed",
        "own mul",
        f"{native.loss:.6f}",
        f"{native.accuracy:.2%}",
        str(own.overridden),
    ):
        assert text in table


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": IMAGES, "labels": LABELS},
        {"data": IMAGES.astype(float), "target": LABELS.astype(float)},
        {"x_train": IMAGES[:30], "y_train": LABELS[:30], "x_test": IMAGES[30:], "y_test": LABELS[30:, None]},
    ],
    ids="-".join,
)
def test_demo_takes_the_usual_names(tmp_path: Path, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    code, text = run("demo", "--data", str(tmp_path / "data.npz"), "--epochs", "1", "--batch", "8", "--hidden", "4")
    assert code == 0, text
    assert f"{30 if 'x_test' in arrays else 32} images of 16 numbers" in text
    data = demo.load(tmp_path / "data.npz")
    assert 0 <= data.x.min() < 0.1
    assert 0.9 < data.x.max() <= 1
    assert data.x.dtype == data.x_test.dtype == np.float32
    assert data.labels.dtype == data.labels_test.dtype == np.int64
    assert len(data.x_test) + len(data.x) == 40


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": IMAGES}, "holds a; it needs images"),
        ({}, "holds nothing; it needs images"),
        ({"images": IMAGES, "labels": LABELS[:-1]}, r"labels of shape \(39,\).* for 40 images"),
        ({"images": IMAGES, "labels": np.eye(40)}, "one class number, from 0, is needed for each"),
        ({"images": IMAGES, "labels": LABELS - 1}, "one class number, from 0, is needed for each"),
        ({"images": IMAGES, "labels": LABELS + 0.5}, "one class number, from 0, is needed for each"),
        ({"images": IMAGES, "labels": LABELS.astype(str)}, "one class number, from 0, is needed for each"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"images of shape \(0, 4, 4\)"),
        ({"images": np.array(1), "labels": LABELS}, r"images of shape \(\)"),
        ({"images": IMAGES.astype(str), "labels": LABELS}, "numbers of shape"),
        ({"images": np.array([[None]]), "labels": LABELS[:1]}, "Object arrays cannot be loaded"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, 1:], "y_test": LABELS},
            r"\(4, 4\) for training but \(3, 4\)",
        ),
    ],
)
def test_demo_refuses_other_data(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "data.npz", allow_pickle=True, **arrays)
    with pytest.raises(demo.DataError, match=message):
        demo.load(tmp_path / "data.npz")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", None, "npy"], ids=repr)
def test_demo_refuses_what_is_no_npz_file(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "data.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "npy":
        with path.open("wb") as file:
            np.save(file, IMAGES)
    code, text = run("demo", "--data", str(path))
    assert code == 2
    assert "cannot be read as an .npz file of images and labels" in " ".join(text.split())


def test_demo_refuses_a_batch_larger_than_the_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    code, text = run("demo", "--data", str(tmp_path / "data.npz"))
    assert code == 2
    assert "give a smaller --batch" in text


def test_demo_without_scikit_learn_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    code, text = run("demo")
    assert code == 2
    assert "pip install 'mixgrad[examples]'" in text


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_which(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("mixgrad", run_name="__main__")
    assert caught.value.code == (
        f"python -m mixgrad needs {missing}, which the extra 'cli' brings: pip install 'mixgrad[cli]'"
    )


def test_as_a_module_it_prints_its_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mixgrad", "--help"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "python -m mixgrad" in done.stdout
    assert "registry" in done.stdout
    assert "demo" in done.stdout
