"""/window in a headless Chromium. Screenshots go where QUIRE_SCREENSHOTS says."""

import os
import pathlib
import subprocess
import threading

import pytest

from browser import Browser, find_browser
from conftest import KEY

# The contrast of every text with what is behind it; what is hidden has none.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => {
    const [r, g, b] = rgb(color).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  window.contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (rgb(color)[3] === 255) return color;
    }
    return "white";
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    const ratio = contrast(getComputedStyle(element).color, behind(element));
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${walker.currentNode.textContent}`);
  }
  return low;
})()"""

# Colours that mean something, beside what they stand on.
GRAPHICS = """(() => {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const pairs = [["warm", "free"], ...["line", "accent", "waiting", "prompt", "decoding", "preempted", "copied", "saved"]
    .map((name) => [name, "panel"])];
  const low = pairs.filter(([a, b]) => contrast(value(a), value(b)) < 3);
  for (let hue = 0; hue < 360; hue += 5)
    for (const other of ["free", "panel"])
      if (contrast(`oklch(${value("lightness")} 0.15 ${hue})`, value(other)) < 3) low.push([hue, other]);
  return low;
})()"""

# Declarations that the browser does not understand.
INVALID_CSS = """(async () => {
  const text = await (await fetch("window/style.css")).text();
  return [...text.matchAll(/([a-z-]+)\\s*:\\s*([^;{}]+);/g)]
    .filter(([, name, value]) => !value.includes("var(") && !CSS.supports(name, value.replace("!important", ""))).map(([all]) => all);
})()"""


@pytest.fixture(scope="module")
def program():
    path = find_browser()
    if not path:
        assert "QUIRE_NEEDS_BROWSER" not in os.environ, "Chromium is missing; tools/install_deps.sh dev installs it"
        pytest.skip("there is no Chromium")
    browser = Browser(path)
    yield browser
    browser.close()


@pytest.fixture
def browser(program):
    """Without the pages of the test before, which would go on drawing."""
    yield program
    for page in [*program.pages.values()]:
        page.close()


@pytest.fixture(scope="module")
def shown(start):
    """Four seats, and a cache that is too small for four long answers."""
    return start("--window", "--max-num-seqs", 4, "--kv-cache-memory", "1MiB", "--max-model-len", 400)


@pytest.fixture
def shots(tmp_path):
    folder = pathlib.Path(os.environ.get("QUIRE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Load:
    """Clients that ask for completions until it ends."""

    def __init__(self, server, clients, **fields):
        self.server, self.fields, self.done = server, fields, False
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def _run(self, number):
        while not self.done:
            prompt = f"{number}: " + "Once upon a time there was a block. " * 4
            self.server.post("/v1/completions", prompt=prompt, ignore_eos=True, **self.fields)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done = True
        for thread in self.threads:
            thread.join()


def check_quiet(page, server):
    page.browser.listen(0.2)
    assert page.errors == []
    assert all(url.startswith((server.url, "data:")) for url in page.requested), page.requested


def test_states_appear_as_a_load_makes_them(browser, shown, shots):
    page = browser.open(f"{shown.url}/window")
    page.wait("document.documentElement.dataset.frames > 0")
    assert page.text("#list") == "" and page.text("#waits") == "Nobody waits."
    assert "each with room for 16 tokens" in page.text("#what-block")
    assert " 0 of them shared, " in page.text(".counts")
    with Load(shown, 8, max_tokens=300, n=2):
        rows = "[...document.querySelectorAll('.row')].map((row) => row.getAttribute('aria-label')).join()"
        page.wait(f"{rows}.includes('writes')")
        page.wait(f"{rows}.includes('waits')")
        page.wait("/Sequence \\d+ waits: (it needs|as many sequences run)/.test(document.querySelector('#waits').innerText)")
        page.wait("/waits behind sequence \\d+/.test(document.querySelector('#waits').innerText)")
        page.wait("!/ 0 of them shared/.test(document.querySelector('.counts').textContent)")
        page.wait("/preempted, and gives its blocks back: too few blocks/.test(document.querySelector('#events').textContent)")
        page.wait(f"{rows}.includes('long enough')")
        page.wait("/one each for [1-4] sequence/.test(document.querySelector('#step-text').innerText)")
        page.wait("/[1-9][\\d,.]*, highest/.test(document.querySelector('#charts b').innerText)")
        page.screenshot(shots / "window_light.png")
    page.wait("document.querySelector('#waits').innerText === 'Nobody waits.'")
    page.wait("/^0 of /.test(document.querySelector('.counts').textContent)")
    check_quiet(page, shown)


def test_a_key_shows_a_sequences_block_table(browser, shown):
    page = browser.open(f"{shown.url}/window")
    with Load(shown, 2, max_tokens=300):
        page.wait("document.querySelectorAll('.row').length > 1")
        page.run("document.querySelector('#pause').focus()")
        page.press("Tab")  # what scrolls may be a stop of its own
        page.wait("!!document.activeElement.closest('summary, #list')")
        for _ in range(3):
            if page.run("document.activeElement.id") != "list":
                page.press("Tab")
        assert page.run("document.activeElement.id") == "list"
        page.press("Home")
        page.press("ArrowDown")
        chosen = page.wait("document.querySelector('[aria-selected=true]')?.dataset.id")
        page.wait(f"document.querySelector('#list').getAttribute('aria-activedescendant') === 'sequence-{chosen}'")
        page.wait(f"document.querySelector('#detail h3')?.innerText.startsWith('Sequence {chosen}: ')")
        # The first sequence may end before the page shows its table; then there is another.
        page.wait("/^1–16\\t\\d+$/m.test(document.querySelector('#detail table')?.innerText)", key="Home")
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    check_quiet(page, shown)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_graphics_have_contrast(browser, shown, shots, dark):
    page = browser.open(f"{shown.url}/window", dark=dark)
    with Load(shown, 6, max_tokens=200):
        page.wait("document.querySelectorAll('.row').length > 5")
        page.run("document.querySelectorAll('details').forEach((details) => (details.open = true))")
        page.run("document.querySelector('#list').focus()")
        page.wait("!!document.querySelector('#detail table')", key="Home")
        assert page.run(CONTRASTS) == []
        assert page.run(GRAPHICS) == []
        page.screenshot(shots / f"window_{'dark' if dark else 'open'}.png")
    assert page.run(INVALID_CSS) == []
    check_quiet(page, shown)


def test_it_fits_400_pixels_and_moves_nothing_where_that_is_not_wanted(browser, shown, shots):
    page = browser.open(f"{shown.url}/window", width=400, height=800, reduced_motion=True)
    with Load(shown, 6, max_tokens=200):
        page.wait("document.querySelectorAll('.row').length > 5")
        page.wait("!!document.querySelector('#budget i')")
        assert page.run("document.documentElement.scrollWidth") <= 400
        assert page.run("getComputedStyle(document.querySelector('#budget i')).transitionDuration") == "0s"
        page.screenshot(shots / "window_400.png")
    still = browser.open(f"{shown.url}/window")
    still.wait("document.documentElement.dataset.frames > 0")
    still.click("#pause")
    browser.listen(0.3)
    frames = still.run("document.documentElement.dataset.frames")
    browser.listen(0.7)
    assert still.run("document.documentElement.dataset.frames") == frames
    check_quiet(page, shown)


def test_what_is_drawn_is_also_said(browser, shown):
    page = browser.open(f"{shown.url}/window")
    page.wait("document.querySelectorAll('#charts canvas[aria-label]').length > 0")
    unsaid = """[...document.querySelectorAll("canvas, [role=img]")].filter((drawing) =>
      !drawing.ariaLabel && !drawing.closest("[aria-hidden=true]")).map((drawing) => drawing.outerHTML)"""
    assert page.run(unsaid) == []
    assert page.run("document.querySelector('#fields canvas').ariaLabel").startswith("KV cache: ")
    unnamed = "[...document.querySelectorAll('button, input, select')].filter((e) => !e.ariaLabel && !e.innerText && !e.labels?.length).length"
    assert page.run(unnamed) == 0


def test_the_page_asks_for_the_key_and_keeps_it(browser, start):
    server = start("--window", "--api-key", KEY)
    page = browser.open(f"{server.url}/window")
    page.wait("!document.querySelector('#key-form').hidden")
    assert page.run("document.activeElement.id") == "key" and page.run("document.querySelector('#main').hidden")
    page.type("wrong")
    page.press("Enter")
    page.wait("performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('state')).length > 1")
    page.run("document.querySelector('#key').value = ''")
    page.run("document.querySelector('#key').focus()")
    page.type(KEY)
    page.press("Enter")
    page.wait("!document.querySelector('#main').hidden")
    assert page.run("document.querySelector('#key-form').hidden")
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && !document.querySelector('#main').hidden")
    assert [error for error in page.errors if "401" not in error] == []


def test_a_key_that_is_entered_twice_begins_one_stream(browser, start):
    server = start("--window", "--api-key", KEY)
    page = browser.open(f"{server.url}/window")
    page.wait("!document.querySelector('#key-form').hidden")
    page.type(KEY)
    page.run("for (let i = 0; i < 2; ++i) document.querySelector('#key-form').requestSubmit()")
    page.wait("!document.querySelector('#main').hidden")
    browser.listen(0.2)
    assert len([url for url in page.requested if url.endswith("/state")]) == 2  # without the key, and with it


def test_another_server_in_its_place_is_shown_and_may_ask_for_a_key(browser, start):
    first = start("--window", "--kv-cache-memory", "1MiB")
    page = browser.open(f"{first.url}/window")
    page.wait("!document.querySelector('#main').hidden")
    assert page.run("document.querySelectorAll('#fields canvas').length") == 1
    first.stop()
    start("--window", "--kv-cache-memory", "1MiB", "--swap-space", "0.01", "--api-key", KEY, port=first.port)
    page.wait("!document.querySelector('#key-form').hidden")
    page.type(KEY)
    page.press("Enter")
    page.wait("document.querySelector('#key-form').hidden")
    page.wait("document.querySelectorAll('#fields canvas').length === 2")


def test_a_recording_is_shown_step_by_step_and_played(browser, binary, start, tmp_path, shots):
    recording = tmp_path / "recording"
    workload = "bench throughput --workload random --requests 6 --input-len 60 --output-len 40 --max-num-seqs 4"
    subprocess.run([binary, *workload.split(), "--kv-cache-memory", "1MiB", "--record", recording], check=True,
                   capture_output=True)
    server = start(recording, command=("replay", "--window"), until="shown")
    page = browser.open(f"{server.url}/window")
    page.wait("!document.querySelector('#player').hidden")
    assert page.run("document.querySelector('#pause').hidden") and "step 1 of" in page.text("#place")
    page.click("#forth")
    page.wait("document.querySelector('#place').innerText.startsWith('step 2 of')")
    page.run("""(() => { const seek = document.querySelector("#seek");
        seek.value = 60; seek.dispatchEvent(new Event("input")); })()""")
    page.wait("document.querySelector('#place').innerText.startsWith('step 60 of')")
    assert "Step 60 computes" in page.text("#step-text")
    page.run("document.querySelector('#table').closest('details').open = true")
    page.wait("document.querySelectorAll('#table th').length > 0")
    page.wait("document.querySelectorAll('.row').length > 3")
    assert "preempted" in page.run("document.querySelector('#events').textContent")
    page.screenshot(shots / "window_replay.png")
    page.click("#back")
    page.wait("document.querySelector('#place').innerText.startsWith('step 59 of')")
    page.run("document.querySelector('#speed').value = 16")
    page.click("#play")
    page.wait("document.querySelector('#play').innerText === 'Stop'")
    page.wait("document.querySelector('#play').innerText === 'Play'", 40)
    page.wait("/^0 of /.test(document.querySelector('.counts').textContent)")
    assert page.run("document.querySelector('#difference').hidden")
    check_quiet(page, server)


def cpu_seconds(pid, thread=""):
    """Of a process, or of its threads of that name."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        if name.startswith(thread):
            total += sum(map(int, fields.split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def test_4096_blocks_and_256_streams_cost_the_server_less_than_a_hundredth(browser, start):
    server = start("--window", "--max-num-seqs", 256, "--kv-cache-memory", "64MiB")
    page = browser.open(f"{server.url}/window")
    with Load(server, 128, max_tokens=100, n=2):
        page.wait("Number(document.querySelector('#numbers dd').innerText) > 200", 60)
        page.wait("document.querySelectorAll('.row').length > 200")
        before = cpu_seconds(server.pid), cpu_seconds(server.pid, "quire-window")
        draws = []
        for _ in range(20):
            browser.listen(0.3)
            draws.append(float(page.run("document.documentElement.dataset.drawMilliseconds")))
        all_seconds, window_seconds = cpu_seconds(server.pid) - before[0], cpu_seconds(server.pid, "quire-window") - before[1]
    print(f"window: {window_seconds:.2f} of {all_seconds:.2f} s; a drawing takes {min(draws)} to {max(draws)} ms")
    assert window_seconds < 0.01 * all_seconds
    assert min(draws) < 1000 / 30
    check_quiet(page, server)
