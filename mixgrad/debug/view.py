# SPDX-License-Identifier: Apache-2.0
"""Looking at a tape: a table, a graph for Graphviz, and a page with a graph to search and click through."""

from __future__ import annotations

import html
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mixgrad.debug.profiling import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from mixgrad.tape import Tape

__all__ = ["dot", "notebook", "page", "summary", "table"]

HEAD, TAIL = 20, 10
# A notebook keeps what it shows: a page of this many entries has about a megabyte.
NOTEBOOK_ENTRIES = 20_000
NOTHING = "Nothing is recorded: nothing was watched yet, or gradient() has freed it. With mixgrad.Tape(persistent=True) it stays."
COLUMNS = ("position", "op", "shape", "dtype", "implementation", "saved", "line")
RIGHT = {"position", "saved"}
# Fill and border by implementation; the page has the same in its style.
COLORS = {
    "source": ("#f3f4f6", "#4b5563"),
    "native": ("#dbeafe", "#1d4ed8"),
    "python": ("#fef3c7", "#b45309"),
    "override": ("#f3e8ff", "#7e22ce"),
    "missing": ("#fee2e2", "#b91c1c"),
}


class Entry(NamedTuple):
    """One operation. Positions are counted from the tape's first one; an input that is not on the tape is -1."""

    position: int
    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    outputs: int
    implementation: str
    origin: str
    line: str
    saved: int
    ns: int


def entries(tape: Tape) -> list[Entry]:
    """What the tape has recorded, in order."""
    rows = tape._window.entries()
    first = rows[0]["position"] if rows else 0
    known = {row["position"] + k for row in rows for k in range(row["outputs"])}
    return [
        Entry(
            position=row["position"] - first,
            op=row["op"],
            inputs=tuple(i - first if i in known else -1 for i in row["inputs"]),
            shape=row["shape"],
            dtype=row["dtype"],
            outputs=row["outputs"],
            implementation=row["runs"] or ("source" if row["op"] == "watch" else "missing"),
            origin=row["origin"],
            line=f"{row['where'][0]}:{row['where'][1]}" if row["where"] else "",
            saved=row["saved_bytes"],
            ns=row["ns"],
        )
        for row in rows
    ]


def summary(tape: Tape) -> str:
    """One line. It looks at no entry: a debugger may ask often, and from another thread."""
    taken = tape._window.n_entries  # an op of several outputs takes several
    return f"<mixgrad.Tape: {_state(tape, taken, 'position', 'positions')}>"


def _state(tape: Tape, count: int, one: str, several: str) -> str:
    recording = "recording" if tape._window.recording else "not recording"
    return f"{count:,} {one if count == 1 else several}, {recording}"


def table(tape: Tape) -> str:
    """The entries as aligned text; of many the first and the last."""
    rows = entries(tape)
    if not rows:
        return f"{summary(tape)}\n{NOTHING}"
    left_out = len(rows) - HEAD - TAIL
    shown = rows if left_out <= 1 else rows[:HEAD] + rows[-TAIL:]
    cells = [
        COLUMNS,
        *(
            (str(e.position), e.op, str(e.shape), e.dtype, e.implementation, shown_bytes(e.saved), e.line or "-")
            for e in shown
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if name in RIGHT else cell.ljust(width)
            for cell, width, name in zip(line, widths, COLUMNS, strict=True)
        ).rstrip()
        for line in cells
    ]
    if left_out > 1:
        lines.insert(1 + HEAD, f"... {left_out:,} entries left out ...")
    return "\n".join(lines)


def dot(tape: Tape) -> str:
    """The graph in Graphviz' language."""
    rows = entries(tape)
    owner = {e.position + k: (e, k) for e in rows for k in range(e.outputs)}
    lines = ["digraph tape {", '  node [shape=box, style=filled, fontname="sans-serif"];']
    for e in rows:
        fill, border = COLORS[e.implementation]
        attributes = {
            "label": f"{e.op}\n{e.dtype} {e.shape}",
            "tooltip": "\n".join(filter(None, (e.implementation, e.origin, e.line))),
            "fillcolor": fill,
            "color": border,
            "style": "filled,dashed" if e.implementation == "missing" else "filled",
        }
        lines.append(f"  n{e.position} [{', '.join(f'{name}={_quoted(text)}' for name, text in attributes.items())}];")
    for e in rows:
        for i in e.inputs:
            if i in owner:
                source, k = owner[i]
                label = f' [label="output {k}"]' if source.outputs > 1 else ""
                lines.append(f"  n{source.position} -> n{e.position}{label};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def page(tape: Tape, path: str | Path | None = None) -> str | None:
    """The page; written to `path` when there is one."""
    text = _page(tape, entries(tape))
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return None


def notebook(tape: Tape) -> str:
    """The page in a frame of its own, so that its style and the notebook's do not meet."""
    rows = entries(tape)
    if not rows or len(rows) > NOTEBOOK_ENTRIES:
        return f"<pre>{html.escape(table(tape))}</pre>"
    return (
        f'<iframe srcdoc="{html.escape(_page(tape, rows))}" sandbox="allow-scripts" title="{html.escape(summary(tape))}" '
        'style="width: 100%; height: 560px; border: 1px solid #8888; border-radius: 6px"></iframe>'
    )


def _page(tape: Tape, rows: list[Entry]) -> str:
    data = {
        "title": f"Tape: {_state(tape, len(rows), 'entry', 'entries')}",
        "nothing": NOTHING,
        "position": [e.position for e in rows],
        "inputs": [e.inputs for e in rows],
        "outputs": [e.outputs for e in rows],
        "saved": [e.saved for e in rows],
        "ns": [e.ns for e in rows],
        "op": _coded(e.op for e in rows),
        "shape": _coded(str(e.shape) for e in rows),
        "dtype": _coded(e.dtype for e in rows),
        "implementation": _coded(e.implementation for e in rows),
        "origin": _coded(e.origin for e in rows),
        "line": _coded(e.line for e in rows),
    }
    # "</script>" or "<!--" in a text would end the data.
    return _template().replace("@DATA@", json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


@cache
def _template() -> str:
    return (resources.files("mixgrad.debug") / "tape.html").read_text(encoding="utf-8")


def _coded(values: Iterable[Hashable]) -> dict[str, list[Any]]:
    """Each different value once, and its number for each entry: most entries share theirs with others."""
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values]
    return {"values": list(numbers), "codes": codes}
