# SPDX-License-Identifier: Apache-2.0
"""Looking at a tape: its table, its graph for Graphviz, and the page, in a real browser."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
from mixgrad.debug import view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EVIL = "<b>&\"'</script><!--\\"
X = np.array([1.0, 2.0, 3.0, 4.0])
OPS: dict[str, Any] = {}


@pytest.fixture(autouse=True, scope="module")
def own_ops() -> Iterator[None]:
    """One without a gradient and with a name that no page must choke on; one whose gradient is Python's."""
    OPS[EVIL] = mixgrad.op(lambda v: v + np.sign(v), name=EVIL)
    OPS["view_softsign"] = mixgrad.op(lambda v: v / (1.0 + np.abs(v)), name="view_softsign", broadcasts=True)
    OPS["view_softsign"].gradient(lambda g, v, out: g / (1.0 + np.abs(v)) ** 2)
    yield
    for name in OPS:
        mixgrad.unregister(name)


def every_kind() -> mixgrad.Tape:
    with mixgrad.Tape() as tape, mixgrad.override_gradient("sin", lambda op, g: op.next(g)):
        x = tape.watch(X)
        first, second = np.split(np.sin(x) * 2.0, 2)
        np.sum(OPS["view_softsign"](second) * OPS[EVIL](first))
    return tape


def chain(length: int) -> mixgrad.Tape:
    with mixgrad.Tape() as tape:
        x = tape.watch(X)
        for _ in range(length):
            x = x + 1.0
    return tape


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_repr() -> None:
    tape = mixgrad.Tape()
    assert repr(tape) == "<mixgrad.Tape: 0 positions, not recording>"
    with tape:
        x = tape.watch(X)
        assert repr(tape) == "<mixgrad.Tape: 1 position, recording>"
        y = np.sum(x * x)
    assert repr(tape) == "<mixgrad.Tape: 3 positions, not recording>"
    tape.gradient(y, x)
    assert str(tape).splitlines() == ["<mixgrad.Tape: 0 positions, not recording>", view.NOTHING]
    assert repr(chain(1999)) == "<mixgrad.Tape: 2,000 positions, not recording>"
    # Eight entries, one of them of two outputs.
    assert repr(every_kind()) == "<mixgrad.Tape: 9 positions, not recording>"


def test_repr_in_another_thread() -> None:
    tape, found = chain(2), []
    thread = threading.Thread(target=lambda: found.append(repr(tape)))
    thread.start()
    thread.join()
    assert found == ["<mixgrad.Tape: 3 positions, not recording>"]


def test_table() -> None:
    lines = str(every_kind()).splitlines()
    where = f"{__file__}:"
    assert [line.partition(where)[0] for line in lines] == [
        "position  op                    shape  dtype    implementation  saved  line",
        "       0  watch                 (4,)   float64  source            0 B  -",
        "       1  sin                   (4,)   float64  override         64 B  ",
        "       2  multiply              (4,)   float64  native            8 B  ",
        "       3  split                 (2,)   float64  python            0 B  ",
        "       5  view_softsign         (2,)   float64  python           32 B  ",
        f"       6  {EVIL}  (2,)   float64  missing          32 B  ",
        "       7  multiply              (2,)   float64  native           32 B  ",
        "       8  sum                   ()     float64  native            0 B  ",
    ]
    assert all(re.fullmatch(r".*:\d+", line) for line in lines[2:])


@pytest.mark.parametrize(("length", "lines", "left_out"), [(31, 32, None), (32, 32, 2), (5000, 32, 4970)])
def test_long_tables_show_head_and_tail(length: int, lines: int, left_out: int | None) -> None:
    shown = str(chain(length - 1)).splitlines()
    assert len(shown) == lines
    positions = [int(line.split()[0]) for line in shown[1:] if not line.startswith("...")]
    if left_out is None:
        assert positions == list(range(length))
    else:
        assert shown[21] == f"... {left_out:,} entries left out ..."
        assert positions == [*range(20), *range(length - 10, length)]


def test_positions_begin_at_the_tape() -> None:
    """Those of the thread's tape go on and on."""
    with mixgrad.Tape() as outer:
        a = outer.watch(X) * 2.0
        with mixgrad.Tape() as inner:
            inner.watch(a) * outer.watch(X)
    assert [(e.position, e.op, e.inputs) for e in view.entries(inner)] == [
        (0, "watch", (-1,)),
        (2, "multiply", (0, -1)),
    ]
    assert [(e.position, e.op, e.inputs) for e in view.entries(outer)] == [
        (0, "watch", ()),
        (1, "multiply", (0, -1)),
        (2, "watch", (1,)),
        (3, "watch", ()),
        (4, "multiply", (2, 3)),
    ]


def test_dot() -> None:
    lines = every_kind().to_dot().splitlines()
    assert lines[0] == "digraph tape {"
    assert lines[-1] == "}"
    assert [line.strip() for line in lines if "->" in line] == [
        "n0 -> n1;",
        "n1 -> n2;",
        "n2 -> n3;",
        'n3 -> n5 [label="output 1"];',
        'n3 -> n6 [label="output 0"];',
        "n5 -> n7;",
        "n6 -> n7;",
        "n7 -> n8;",
    ]
    (evil,) = [line for line in lines if line.startswith("  n6 [")]
    assert evil.startswith("""  n6 [label="<b>&\\"'</script><!--\\\\\\nfloat64 (2,)", """)
    assert evil.endswith('fillcolor="#fee2e2", color="#b91c1c", style="filled,dashed"];')


def test_the_colors_are_those_of_the_page() -> None:
    page = view._template()
    for kind, (fill, line) in view.COLORS.items():
        assert f"--{kind}-fill: light-dark({fill}, " in page
        assert f"--{kind}-line: light-dark({line}, " in page


def test_html(tmp_path: Path) -> None:
    tape = every_kind()
    page = tape.to_html()
    target = tmp_path / "tape.html"
    tape.to_html(target)
    assert target.read_text(encoding="utf-8") == page
    assert re.findall(r"https?://", page) == []
    data = data_of(page)
    assert data["title"] == "Tape: 8 entries, not recording"
    assert data["position"] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert data["inputs"] == [[], [0], [1, -1], [2], [4], [3], [5, 6], [7]]
    assert [data["op"]["values"][code] for code in data["op"]["codes"]][5] == EVIL
    assert data["implementation"]["values"] == ["source", "override", "native", "python", "missing"]


def test_notebook() -> None:
    tape = every_kind()
    shown = tape._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(page) == tape.to_html()
    assert 'sandbox="allow-scripts"' in shown
    assert mixgrad.Tape()._repr_html_().startswith("<pre>&lt;mixgrad.Tape: 0 positions, not recording&gt;\nNothing")


def test_a_notebook_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "NOTEBOOK_ENTRIES", 10)
    assert "<iframe" in chain(9)._repr_html_()
    assert chain(10)._repr_html_() == f"<pre>{html.escape(str(chain(10)))}</pre>"


def test_a_large_page_is_small() -> None:
    assert len(chain(4999).to_html()) < 500_000


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,800",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and its chromedriver (Debian's packages chromium and chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(switch)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield started
    started.quit()


class Browser:
    """One page, as its user sees it."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, tape: mixgrad.Tape, page: str | None = None) -> None:
        path = self.folder / "tape.html"
        path.write_text(tape.to_html() if page is None else page, encoding="utf-8")
        self.driver.get(path.as_uri())

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.driver.find_elements("css selector", selector)]

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def type(self, selector: str, keys: str) -> None:
        self.find(selector).send_keys(keys)

    def click_node(self, i: int) -> None:
        """In the middle of where node `i` is drawn."""
        from selenium.webdriver import ActionChains  # noqa: PLC0415  an extra

        right, down = self.run(f"[(x[{i}] - originX) * scale - width / 2, (y({i}) - originY) * scale - height / 2]")
        ActionChains(self.driver).move_to_element_with_offset(self.find("#canvas"), right, down).click().perform()

    def details(self) -> dict[str, str]:
        return dict(zip(self.texts("#details dt"), self.texts("#details dd"), strict=True))


@pytest.fixture
def browser(driver: Any, tmp_path: Path) -> Iterator[Browser]:
    yield Browser(driver, tmp_path)
    assert driver.get_log("browser") == []


def test_page_shows_the_tape(browser: Browser) -> None:
    browser.open(every_kind())
    assert browser.driver.title == "Tape: 8 entries, not recording"
    assert browser.texts("#legend button") == ["source 1", "native 3", "python 2", "override 1", "missing 1"]
    assert browser.texts(".row .op") == [
        "watch", "sin", "multiply", "split", "view_softsign", EVIL, "multiply", "sum"
    ]  # fmt: skip
    assert browser.details()["entries"] == "8"
    assert browser.details()["saved"] == "168 B"


def test_click_shows_details(browser: Browser) -> None:
    with mixgrad.debug.profile():
        tape = every_kind()
    browser.open(tape)
    browser.click_node(1)
    details = browser.details()
    assert browser.texts("#details h2") == ["#1 sin"]
    assert (details["gradient"], details["shape"], details["saved"]) == ("override", "(4,)", "64 B")
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", details["registered by"])
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", details["line"])
    assert re.fullmatch(r"[\d.]+ (ns|µs|ms|s)", details["forward took"])
    assert browser.texts("#details .links button") == ["#0 watch", "#2 multiply"]
    browser.click_node(5)
    assert browser.texts("#details h2") == [f"#6 {EVIL}"]
    assert browser.details()["gradient"] == "missing: this op has no gradient"
    assert browser.texts("#details .links button") == ["#3 split, output 0", "#7 multiply"]
    browser.find("#details .links button").click()
    assert browser.texts("#details h2") == ["#3 split"]
    assert browser.texts(".row[aria-selected=true] .op") == ["split"]


def test_search_filters(browser: Browser) -> None:
    browser.open(every_kind())
    for words, rows in {
        "MULTIPLY": ["multiply", "multiply"],
        "multiply (2,)": ["multiply"],
        "override": ["sin"],
        "test_view.py": ["sin", "multiply", "split", "view_softsign", EVIL, "multiply", "sum"],
        "</script>": [EVIL],
        "sin": ["sin"],
        "missing": [EVIL],
        "nothing like it": [],
    }.items():
        browser.find("#search").clear()
        browser.type("#search", words)
        assert browser.texts(".row .op") == rows
        assert browser.find("#found").text == f"{len(rows)} of 8"


def test_legend_hides(browser: Browser) -> None:
    browser.open(every_kind())
    browser.driver.find_elements("css selector", "#legend button")[1].click()
    assert browser.texts(".row .op") == ["watch", "sin", "split", "view_softsign", EVIL]
    assert browser.find("#found").text == "5 of 8"


def test_keyboard(browser: Browser) -> None:
    from selenium.webdriver import Keys  # noqa: PLC0415  an extra

    browser.open(every_kind())
    browser.type("body", "/")
    assert browser.run("document.activeElement.id") == "search"
    chosen = []
    browser.type("#search", "multiply")
    for keys in (Keys.ENTER, Keys.ENTER, Keys.ENTER, Keys.SHIFT + Keys.ENTER):
        browser.type("#search", keys)
        chosen += browser.texts("#details h2")
    for key in (Keys.ARROW_UP, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN):
        browser.type("#canvas", key)
        chosen += browser.texts("#details h2")
    assert chosen[:4] == ["#2 multiply", "#7 multiply", "#2 multiply", "#7 multiply"]
    assert chosen[4] == "#5 view_softsign"
    assert set(chosen[5:7]) == {"#5 view_softsign", f"#6 {EVIL}"}
    assert chosen[7:] == ["#7 multiply", "#8 sum", "#8 sum"]
    browser.type("#canvas", Keys.ESCAPE)
    assert browser.texts("#details h2") == ["The whole tape"]
    assert len(browser.texts(".row")) == 8
    browser.type("#list", Keys.ARROW_DOWN)
    assert browser.texts("#details h2") == ["#0 watch"]
    before = browser.run("scale")
    browser.type("#canvas", "+")
    assert browser.run("scale") == pytest.approx(1.4 * before)


def test_inputs_and_users_are_highlighted(browser: Browser) -> None:
    browser.open(every_kind())
    browser.click_node(2)
    # Right above the upper edge, where a highlighted node has its frame. The picture is read once: Chromium warns of more.
    browser.driver.execute_script(
        "scale = 1.5; middle(x[2], y(2)); draw(); picture = pen.getImageData(0, 0, canvas.width, canvas.height)"
    )
    found = browser.run(
        """[1, 3, 5].map((i) => {
          const right = Math.round((x[i] + 30 - originX) * scale * devicePixelRatio);
          const down = Math.round((y(i) - HEIGHT / 2 - 3 - originY) * scale * devicePixelRatio);
          const at = 4 * (down * canvas.width + right);
          return `rgb(${[...picture.data.slice(at, at + 3)].join(", ")})`;
        })"""
    )
    colors = browser.run("colors")
    assert found == [colors["input"], colors["user"], colors["back"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser: Browser, scheme: str) -> None:
    """WCAG's AA for text, 3 to 1 for the borders that tell implementations apart."""
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.open(every_kind())
    colors = browser.run("colors")
    assert (luminance(colors["back"]) > 0.5) == (scheme == "light")
    for kind in view.COLORS:
        assert contrast(colors["text"], colors[kind]["fill"]) > 7
        assert contrast(colors["quiet"], colors[kind]["fill"]) > 4.5
        assert contrast(colors[kind]["line"], colors["back"]) > 3
    assert contrast(colors["quiet"], colors["back"]) > 4.5
    browser.find("#scheme").click()
    assert (luminance(browser.run("colors")["back"]) > 0.5) == (scheme == "dark")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def luminance(color: str) -> float:
    parts = [int(n) / 255 for n in re.findall(r"\d+", color)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    darker, brighter = sorted((luminance(a), luminance(b)))
    return (brighter + 0.05) / (darker + 0.05)


def recurrent(steps: int) -> mixgrad.Tape:
    """Weights that every step uses: edges across the whole graph."""
    with mixgrad.Tape() as tape:
        w, u, b, xs = (tape.watch(np.ones(shape)) for shape in ((4, 4), (4, 4), 4, (steps, 4)))
        h, losses = tape.watch(X), []
        for i in range(steps):
            h = np.tanh(w @ h + u @ xs[i] + b)
            losses.append(np.sum(h * h))
        mixgrad.numpy.sum(mixgrad.numpy.stack(losses))
    return tape


@pytest.mark.parametrize("make", [lambda: chain(4999), lambda: recurrent(625)], ids=["chain", "recurrent"])
def test_five_thousand_entries(browser: Browser, make: Callable[[], mixgrad.Tape]) -> None:
    from selenium.webdriver import Keys  # noqa: PLC0415  an extra

    tape = make()
    browser.open(tape)
    count = len(view.entries(tape))
    assert count >= 5000
    assert len(browser.texts(".row")) < 100
    browser.type("#search", f"#{count - 1}")
    assert browser.find("#found").text == f"1 of {count:,}"
    browser.type("#search", Keys.ENTER)
    assert browser.texts("#details h2")[0].startswith(f"#{count - 1} ")
    browser.find("#fit").click()
    browser.run("choose(-1)")
    browser.run(f"choose({count // 2})")
    browser.click_node(count // 2)
    assert browser.texts("#details h2")[0].startswith(f"#{count // 2} ")


@pytest.mark.parametrize("make", [every_kind, lambda: recurrent(20)], ids=["kinds", "recurrent"])
def test_nodes_do_not_overlap_and_edges_go_down(browser: Browser, make: Callable[[], mixgrad.Tape]) -> None:
    browser.open(make())
    places = browser.run("Array.from({length: count}, (_, i) => [y(i), x[i]])")
    ordered = sorted(places)
    assert all(b[0] > a[0] or b[1] >= a[1] + browser.run("WIDTH") for a, b in itertools.pairwise(ordered))
    for i, inputs in enumerate(browser.run("inputs")):
        assert all(places[j][0] < places[i][0] for j in inputs)


def test_nothing_recorded(browser: Browser) -> None:
    browser.open(mixgrad.Tape())
    assert browser.find("#details").text == view.NOTHING
    browser.type("body", "0")


def test_in_a_notebook(browser: Browser) -> None:
    browser.open(every_kind(), f"<!DOCTYPE html><style>* {{ color: red }}</style>{every_kind()._repr_html_()}")
    browser.driver.switch_to.frame(browser.find("iframe"))
    browser.type("#search", "sin")
    assert browser.texts(".row .op") == ["sin"]
    browser.driver.switch_to.default_content()
