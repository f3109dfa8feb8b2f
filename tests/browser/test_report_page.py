"""Tests of the HTML report in a browser: first section, linked pictures, keyboard, themes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from codegen import compile
from coordgraph import Gemm, parse
from passes import StreamK, TwoTileStreamK
from passes.simulation import simulate
from tests.support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
SIZES = {"m": 1536, "n": 1792, "k": 1024}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report file with all sections; its measured run takes 1.5 times the simulated time."""
    graph = TwoTileStreamK()(Gemm("bf16").graph((128, 128, 64)))
    columns = simulate(graph, SIZES).event_columns()
    for side in ("begin", "end"):
        columns[side] = (1.5 * np.array(columns[side])).tolist()
    path = tmp_path_factory.mktemp("report") / "report.html"
    compile(graph, "sm_90a").report(path, **SIZES, measured=columns)
    return path


class Opened:
    """An opened page, with its network requests and its console errors."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def data(self, selector: str, name: str) -> str:
        self.settle()
        return self.page.get_attribute(selector, f"data-{name}") or ""

    def settle(self) -> None:
        """Wait until the page has drawn a change, which it does in the next frame."""
        twice = "() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))"
        self.page.evaluate(twice)

    def picture(self, canvas: str) -> str:
        """The pixels of a canvas as a text, so that two pictures can be compared."""
        self.settle()
        return self.page.evaluate("s => document.querySelector(s).toDataURL()", canvas)

    def measure(self, canvas: str) -> dict[str, int]:
        """Measure a canvas, and return two numbers.

        `colours`: how many colours cover more pixels than the canvas is high.
        `end`: the column of the last pixel in row 20 that has not the background's colour.
        """
        self.settle()
        return self.page.evaluate(MEASURE, canvas)


MEASURE = """(selector) => {
  const shown = document.querySelector(selector), { width, height } = shown;
  const copy = document.createElement("canvas");
  Object.assign(copy, { width, height });
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(shown, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const row = pixels.subarray(20 * width, 21 * width), ground = row[width - 1];
  return {
    colours: [...counts.values()].filter((count) => count > height).length,
    end: row.findLastIndex((pixel) => pixel !== ground),
  };
}"""


@pytest.fixture
def opened(browser: Browser, path: Path) -> Iterator[Opened]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = Opened(page, path)
    yield found
    assert found.complaints == []
    page.close()


@pytest.mark.slow
def test_the_page_asks_nothing_of_the_network(opened: Opened, path: Path):
    for details in opened.page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    opened.settle()
    assert opened.requests == [path.as_uri()]


def test_the_first_view_answers_without_scrolling(opened: Opened):
    text = opened.text("#overview")
    assert "Is the GPU busy?" in text
    assert opened.text("#utilisation").endswith("%")
    assert "TFLOP/s" in text
    assert "measured" in text
    assert "of which tensor cores" in opened.text("#limit")
    assert "of the peak of 948 TFLOP/s" in text
    assert "132 SMs × 4096 operations per cycle" in opened.text("#peak")
    assert "including waits for loads" in text
    assert "limit" in opened.text("#limit")
    assert opened.page.get_attribute("#limit", "class") == "why"
    for selector in (
        "#utilisation",
        "#limit",
        "#why",
        "#advice",
        "#overview .stack",
        "#overview .legend",
    ):
        box = opened.page.locator(selector).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 900, selector
    shares = [s.strip() for s in opened.text("#overview .legend").split("%") if s.strip()]
    assert 97 <= sum(float(share.split()[-1]) for share in shares) <= 103


def test_tiles_outside_d_are_the_first_reason(browser: Browser, tmp_path: Path):
    """If a graph has more tiles than D needs, the report names them as the main loss of time."""
    text = str(StreamK()(Gemm("bf16").graph((128, 128, 64))))
    wrong = parse(text.replace("(m + 127) // 128", "(m + 3) // 4"))
    path = tmp_path / "outside.html"
    wrong.report(path, m=512, n=512, k=512, workgroups=132)
    page = browser.new_page()
    found = Opened(page, path)
    assert "outside D" in found.text(".why")
    assert "No." in found.text("#overview .verdict")
    assert "tiles outside D" in found.text("#overview .legend")
    assert found.page.evaluate(
        "getComputedStyle(document.querySelector('#overview .swatch.outside-D')).backgroundColor"
    ) == ("rgb(122, 31, 31)")
    assert found.complaints == []
    page.close()


def hover_middle(opened: Opened, selector: str, x: float, y: float) -> None:
    opened.page.locator(selector).scroll_into_view_if_needed()
    box = opened.page.locator(selector).bounding_box()
    assert box is not None
    opened.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_pointing_at_a_tile_lights_its_bars_in_both_timelines(opened: Opened):
    dim = opened.picture("#gantt-simulated")
    hover_middle(opened, "#tile-map", 0.5, 0.5)
    tile = opened.data("#tile-map", "tile")
    assert tile
    for name in ("simulated", "measured"):
        assert opened.data(f"#gantt-{name}", "tile") == tile
    assert "k tiles" in opened.text("#detail")
    assert opened.picture("#gantt-simulated") != dim


def test_pointing_at_a_bar_lights_its_tile(opened: Opened):
    before = opened.picture("#tile-map")
    for name in ("measured", "simulated"):
        hover_middle(opened, f"#gantt-{name}", 0.3, 0.4)
        assert opened.data("#tile-map", "tile")
        assert opened.data("#tile-map", "workgroup")
        assert opened.text("#detail").startswith(f"{name}: workgroup ")
        assert opened.picture("#tile-map") != before
    opened.page.mouse.move(1, 1)
    assert opened.data("#tile-map", "tile") == ""


def test_both_timelines_have_one_scale(opened: Opened):
    """Both timelines have one scale: the shorter, simulated run ends at two thirds of the width."""
    simulated, measured = (opened.measure(f"#gantt-{n}")["end"] for n in ("simulated", "measured"))
    width = opened.page.evaluate("document.getElementById('gantt-measured').width")
    left = 34
    assert simulated - left == pytest.approx((width - left) / 1.5, rel=0.02)
    assert measured == -1 or measured > width - 10


def test_arrow_keys_move_through_tiles_and_bars(opened: Opened):
    page = opened.page
    page.focus("#tile-map")
    page.keyboard.press("ArrowRight")
    assert opened.data("#tile-map", "tile") == "0:0:0:0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert opened.data("#tile-map", "tile") == "0:0:1:1"
    page.keyboard.press("Enter")
    opened.settle()
    assert "Pinned" in opened.text("#detail")
    hover_middle(opened, "#gantt-simulated", 0.9, 0.9)
    assert opened.data("#tile-map", "tile") == "0:0:1:1"
    page.keyboard.press("Escape")
    assert opened.data("#tile-map", "tile") == ""
    page.focus("#gantt-simulated")
    seen = set()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
        opened.settle()
        seen.add(opened.text("#detail"))
    assert len(seen) == 4
    before = opened.picture("#gantt-simulated")
    page.keyboard.press("+")
    assert opened.picture("#gantt-simulated") != before
    page.keyboard.press("0")
    assert opened.picture("#gantt-simulated") == before


def test_everything_is_reached_with_tab_and_shows_it(opened: Opened):
    page, reached = opened.page, set()
    script = """() => { const e = document.activeElement, s = getComputedStyle(e);
        return [e.id || e.dataset.value || e.tagName + (e.textContent || '').slice(0, 20),
                s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; }"""
    for _ in range(140):
        page.keyboard.press("Tab")
        name, visible = page.evaluate(script)
        assert visible or name.startswith("BODY"), name
        reached.add(name)
    wanted = {"theme", "tile-map", "gantt-simulated", "gantt-measured", "kind", "operations", "ptx"}
    assert wanted <= reached


def test_controls_have_names(opened: Opened):
    unnamed = opened.page.evaluate(
        """() => [...document.querySelectorAll("button,canvas,select,input,nav,[tabindex]")]
        .filter(e => !e.hasAttribute("aria-hidden"))
        .filter(e => !e.getAttribute("aria-label") && !e.textContent.trim())
        .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []


def luminance(colour: str) -> float:
    channels = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_in_both_themes(browser: Browser, path: Path, scheme: Any):
    page = browser.new_page(color_scheme=scheme)
    opened = Opened(page, path)
    ground = luminance(page.evaluate("colour('card')"))
    assert (ground < 0.2) == (scheme == "dark")
    for name in ("text", "soft", "link", "good", "fair", "poor"):
        ink = luminance(page.evaluate(f"colour('{name}')"))
        ratio = (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)
        assert ratio >= 4.5, name
    page.click("#theme")
    opened.settle()
    assert (luminance(page.evaluate("colour('card')")) < 0.2) == (scheme == "light")
    assert opened.complaints == []
    page.close()


@pytest.mark.parametrize("width", [360, 390, 768, 1280, 1920])
def test_no_width_scrolls_sideways(browser: Browser, path: Path, width: int):
    page = browser.new_page(viewport={"width": width, "height": 844})
    opened = Opened(page, path)
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    opened.settle()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert opened.complaints == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_have_many_colours(browser: Browser, path: Path, scheme: Any):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    opened = Opened(page, path)
    for selector, least in (("#tile-map", 7), ("#gantt-simulated", 4)):
        assert opened.measure(selector)["colours"] >= least, selector
    assert len(page.screenshot()) > 50_000
    page.close()


def test_an_operation_shows_its_instructions(opened: Opened):
    page = opened.page
    page.locator("#operations [data-op]", has_text="MultiplyShared").first.click()
    chosen = page.locator("#ptx .chosen").all_inner_texts()
    assert any("wgmma.mma_async" in text for text in chosen)
    assert "MultiplyShared" in opened.text("#code-status")
    page.locator("#ptx [data-op]", has_text="mbarrier.init").first.click()
    assert "InitBarrier" in page.locator("#operations .chosen").inner_text()
    page.focus("#operations")
    before = opened.text("#code-status")
    page.keyboard.press("ArrowDown")
    assert opened.text("#code-status") != before


def test_an_address_is_derived_step_by_step(opened: Opened):
    page = opened.page
    page.fill("#addresses input", "partials")
    entry = page.locator("details.address:visible").first
    entry.locator("summary").click()
    text = entry.inner_text()
    assert "given" in text
    assert "made by two-tile-stream-k" in text
    assert "bytes from the start of partials" in text
    assert entry.locator(".steps > li").count() > 2


def test_passes_are_shown_before_and_after(opened: Opened):
    page = opened.page
    first = page.locator("details.pass").first
    assert first.locator(".box.added").count() > 10
    assert first.locator(".tree .added").first.is_visible()
    first.locator("button[data-value=before]").click()
    assert not first.locator(".box.added").first.is_visible()
    assert first.locator(".box.same").first.is_visible()
    first.locator("button[data-value=after]").click()
    assert first.locator(".box.added").first.is_visible()


def test_verdicts_are_listed(opened: Opened):
    text = opened.text("#proofs")
    for check in ("sizes", "cover", "fix-up", "progress", "bounds"):
        assert check in text
    assert "proved for all sizes" in text


def test_a_graph_without_code_and_measurement_says_how_to_get_them(
    browser: Browser, tmp_path: Path
):
    path = tmp_path / "plain.html"
    StreamK()(Gemm("bf16").graph()).report(path, m=300, n=200, k=100, check=None)
    page = browser.new_page()
    opened = Opened(page, path)
    assert "coordgraph trace" in opened.text("#not-measured")
    assert "kernel.report(path)" in opened.text("#code")
    assert page.locator("#proofs").count() == 0
    assert opened.complaints == []
    page.close()


@pytest.mark.slow
def test_a_name_cannot_become_markup(browser: Browser, tmp_path: Path):
    path = tmp_path / "named.html"
    graph = StreamK()(Gemm("bf16").graph())
    title = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    graph.report(path, m=300, n=200, k=100, check=None, title=title)
    page = browser.new_page()
    opened = Opened(page, path)
    assert title in opened.text("#overview")
    assert page.locator("img").count() == 0
    assert opened.complaints == []
    page.close()
