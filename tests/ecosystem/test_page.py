"""The page at / in headless Chromium, by `playwright` as it comes from PyPI: it types, drags and asks by keyboard, on a
phone and on a wide screen, in light and dark. EDGEWISE_SCREENSHOTS names a folder for a picture of each step, and
EDGEWISE_CHROMIUM the browser."""

import base64
import os
import re
import struct
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
import zlib

from playwright.sync_api import Page, expect, sync_playwright

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from edgewise_process import EXAMPLES, HANG, TESTDATA, Server, wait_until  # noqa: E402

CHROMIUM = os.environ.get("EDGEWISE_CHROMIUM", "/usr/bin/chromium")
PICTURES = os.environ.get("EDGEWISE_SCREENSHOTS")
PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
SCREENS = [(PHONE, "light"), (PHONE, "dark"), (WIDE, "light"), (WIDE, "dark")]
CALLS = "/edgewise/v1/predict"

# Every text that is seen, with the contrast to what is painted behind it.
CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const light = (color) => {
    const [r, g, b] = color.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backgroundOf = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, color) => over(color, below), [255, 255, 255]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement, style = getComputedStyle(element);
    if (!node.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest(".unseen, noscript, option")) continue;
    const behind = backgroundOf(element);
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const [r, g, b, a = 1] = parse(element instanceof SVGElement ? style.fill : style.color);
    const ink = over([r, g, b, a * opacity], behind);
    const [high, low] = [light(ink), light(behind)].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


def png(width: int, height: int) -> bytes:
    """A picture of a dark square on light ground."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def pixel(x: int, y: int) -> bytes:
        inside = abs(2 * x - width) < width / 2 and abs(2 * y - height) < height / 2
        return b"\x20\x30\x40" if inside else b"\xe0\xe0\xd0"

    rows = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(width)) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=HANG):
            return True
    except urllib.error.HTTPError:
        return False


class Browser(unittest.TestCase):
    """A browser for all tests of a class; a server of their own."""

    repository = EXAMPLES
    flags: tuple = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.repository, "--http_listen=127.0.0.1:0", *cls.flags)
        cls.addClassCleanup(cls.server.stop)
        wait_until("the server", lambda: answers(f"http://{cls.server.http_address}/readyz"))
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.errors, self.foreign = [], []

    def tearDown(self):
        self.assertEqual(self.foreign, [], "requests to others")
        self.assertEqual(self.errors, [], "errors in the console")

    def open(self, screen: dict = WIDE, scheme: str = "light", model: str = "", **options) -> Page:
        context = self.browser.new_context(viewport=screen, color_scheme=scheme, **options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(HANG * 1000)
        expect.set_options(timeout=HANG * 1000)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self.note)
        page.goto(f"http://{self.server.http_address}/#{model}")
        return page

    def note(self, request) -> None:
        if not request.url.startswith((f"http://{self.server.http_address}/", "blob:")):
            self.foreign.append(request.url)

    def look(self, page: Page, name: str) -> None:
        if PICTURES:
            page.locator("#results:not([aria-busy])").wait_for()
            page.screenshot(path=os.path.join(PICTURES, f"{name}.png"), full_page=True)

    def check_contrast(self, page: Page, where: str) -> None:
        texts = page.evaluate(CONTRASTS)
        self.assertGreater(len(texts), 20, where)
        for contrast, text in texts:
            self.assertGreaterEqual(contrast, 4.5, f"{text!r}, {where}")

    def check_width(self, page: Page, where: str) -> None:
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        self.assertLessEqual(overflow, 0, f"{where} scrolls sideways")


class ModelsTest(Browser):
    def test_every_screen_shows_an_answer_that_can_be_read(self):
        for screen, scheme in SCREENS:
            where = f"{screen['width']}-{scheme}"
            page = self.open(screen, scheme)
            page.locator("#text").fill("the worst film of the year , dull and stupid")
            expect(page.locator("#words .token")).to_have_count(10)
            expect(page.locator("#answer .headline strong")).to_have_text("negative")
            expect(page.locator("#attention .lines path").first).to_be_visible()
            self.check_contrast(page, where)
            self.check_width(page, where)
            self.look(page, f"sentiment-{where}")

    def test_lines_are_the_edges_and_stay_under_a_dragged_cap(self):
        page = self.open()
        expect(page.locator("#attention .lines path").first).to_be_visible()
        seen = 0
        for value in (95, 85, 75, 100):
            with page.expect_response(lambda response: CALLS in response.url) as answered:
                page.locator("#cap").fill(str(value))
            edges = answered.value.json()["predictions"][0]["edges"]
            if value < 100:
                self.assertLessEqual(edges["edges"], int(edges["budget"]))
            drawn = f"{edges['edges']:,.0f}"
            expect(page.locator("#answer dd").first).to_contain_text(re.compile(rf"^{drawn}(at most|of )"))
            # The lines of each layer and head are together the edges of the answer.
            lines = 0
            for i in range(page.locator("#attention .heads input").count()):
                page.locator("#attention .heads label").nth(i).click()
                expect(page.locator("#attention .heads input").nth(i)).to_be_checked()
                lines += page.locator("#attention .lines path").count()
            self.assertEqual(lines, edges["edges"], f"at {value}")
            seen += lines
        self.assertGreater(seen, 0)

    def test_dragging_sends_four_calls_a_second_and_the_last_one_counts(self):
        page = self.open(model="long")
        page.locator("#attention").wait_for()
        box = page.locator("#cap").bounding_box()
        at = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] - 5, at)
        page.mouse.down()
        page.evaluate("""() => {
          const { fetch } = window;
          window.calls = [];
          window.fetch = (...request) => {
            window.calls.push(performance.now());
            return fetch(...request);
          };
        }""")
        start = time.monotonic()
        while (passed := time.monotonic() - start) < 3:
            page.mouse.move(box["x"] + box["width"] * (0.9 - 0.25 * passed), at)
        page.mouse.up()
        value = page.locator("#cap_value").inner_text()
        page.locator("#results:not([aria-busy])").wait_for()
        page.wait_for_timeout(1500)
        calls = page.evaluate("window.calls")
        self.assertGreater(len(calls), 4)
        for i in range(len(calls) - 4):
            self.assertGreater(calls[i + 4] - calls[i], 1000, "five calls in a second")
        share = float(re.search(r"([\d.]+)\s%", value).group(1)) / 100
        facts = page.locator("#answer .facts").inner_text()
        cap, pairs = (int(re.search(rf"{words} ([\d,]+)", facts).group(1).replace(",", "")) for words in ("at most", "of"))
        self.assertEqual(cap, int(share * pairs + 1e-9))
        self.look(page, "long-capped")

    def test_samples_give_a_spread_and_the_graph_of_the_first(self):
        page = self.open(model="listops")
        page.locator("#samples").fill("3")
        expect(page.locator("#answer .headline span")).to_contain_text("±")
        expect(page.locator("#attention .caption")).to_contain_text("in the first of 8 samples")
        self.check_contrast(page, "samples")
        self.look(page, "listops-samples")

    def test_a_long_text_is_shown_in_bins(self):
        page = self.open(model="long")
        expect(page.locator("#attention .matrix.large path").first).to_be_attached()
        self.check_contrast(page, "long")
        self.look(page, "long")

    def test_token_ids_and_rows_of_features_are_taken(self):
        page = self.open(model="duplicates")
        expect(page.locator("#answer .labelled .token")).to_have_count(256)
        self.look(page, "duplicates")
        page.locator("#model").select_option(label="shapes")
        expect(page.locator("#answer .headline strong")).to_have_text("ring")
        self.look(page, "shapes")
        page.locator("#model").select_option(label="graphs")  # features with a bias, as JSON
        expect(page.locator("#answer_title")).to_have_text("Value")
        expect(page.locator("#answer .headline strong")).to_have_text(re.compile(r"^0\.\d+$"))
        self.look(page, "graphs")

    def test_a_text_streams_shaded_by_entropy_and_stops(self):
        for screen, scheme in SCREENS:
            page = self.open(screen, scheme, "shakespeare-llama")
            page.locator("#answer").wait_for()
            page.locator("#write").click()
            expect(page.locator("#written .token")).to_have_count(120)
            expect(page.locator("#said")).to_have_text("120 tokens were written.")
            shades = page.evaluate("[...document.querySelectorAll('#written .token')].map("
                                   "(token) => Number(token.style.getPropertyValue('--shade')))")
            self.assertGreater(max(shades) - min(shades), 0.2)
            self.check_contrast(page, f"written, {scheme}")
            self.check_width(page, f"written, {scheme}")
            self.look(page, f"llama-{screen['width']}-{scheme}")
        page.locator("#tokens").fill("4096")
        page.locator("#samples").fill("5")
        page.locator("#write").click()
        page.locator("#written .token").first.wait_for()
        page.locator("#stop").click()
        expect(page.locator("#said")).to_contain_text("Stopped after")
        expect(page.locator("#write")).to_be_enabled()

    def test_all_is_reached_by_keyboard(self):
        page = self.open(reduced_motion="reduce")
        expect(page.locator("#attention .lines path").first).to_be_visible()
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.className || "
                                         "document.activeElement.name || document.activeElement.tagName"))
            outlined = page.evaluate("""() => {
              const has = (element) => element && getComputedStyle(element).outlineStyle !== 'none';
              const at = document.activeElement;
              return at === document.body || has(at) || has(at.nextElementSibling) || has(at.closest('label'));
            }""")
            self.assertTrue(outlined, f"the focus on {reached[-1]} is not seen")
        for name in ("skip", "model", "text", "cap", "samples", "seed", "draw", "unseen", "row"):
            self.assertIn(name, reached)
        page.locator("#cap").focus()
        with page.expect_response(lambda response: CALLS in response.url):
            page.keyboard.press("ArrowLeft")
        expect(page.locator("#cap_value")).to_contain_text("at most")
        page.locator("#attention .heads input").first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#attention .caption")).to_contain_text("Layer 1, head 2")
        moving = "getComputedStyle(document.querySelector('.bar span')).transitionDuration"
        self.assertEqual(page.evaluate(moving), "0s")

    def test_errors_are_shown_as_the_server_says_them(self):
        page = self.open()
        page.locator("#answer").wait_for()
        page.locator("#text").fill("film " * 65)
        expect(page.locator("#error")).to_contain_text("has more than 64 tokens")
        self.check_contrast(page, "an error")
        self.look(page, "error")
        page.locator("#text").fill("a good film")
        expect(page.locator("#error")).to_be_empty()
        self.errors = [error for error in self.errors if "status of 400" not in error]  # the browser's own line

    def test_the_page_is_of_this_server_alone(self):
        page = self.open()
        response = page.request.get(f"http://{self.server.http_address}/")
        policy = response.headers["content-security-policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        page.locator("#answer").wait_for()
        blocked = page.evaluate("""() => {
          document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.broken = 1' }));
          return window.broken === undefined;
        }""")
        self.assertTrue(blocked, "an inline script runs")
        self.errors = [error for error in self.errors if "Content Security Policy" not in error]


class HuggingFaceTest(Browser):
    repository = TESTDATA + "_hugging_face"

    def test_masks_labels_of_tokens_and_several_labels_have_their_views(self):
        page = self.open(model="bert_masked")
        expect(page.locator("#answer .bars li")).to_have_count(5)
        self.look(page, "fill-mask")
        page.locator("#model").select_option(label="bert_tokens")
        expect(page.locator("#answer .labelled .token").first).to_be_visible()
        self.look(page, "token-classification")
        page.locator("#model").select_option(label="bert_multi_label")
        expect(page.locator("#answer .headline small")).to_contain_text("above 50")
        self.look(page, "multi-label")

    def test_a_dense_model_gets_a_budget_with_sampled_windows(self):
        page = self.open(model="bert_sequence")
        expect(page.locator("#cap")).to_be_disabled()
        page.locator("#sparse").check()
        page.locator("#cap").fill("90")
        expect(page.locator("#answer .facts")).to_contain_text("at most")
        self.look(page, "sparse")


class SentenceTest(Browser):
    repository = TESTDATA + "_sentence"

    def test_two_texts_are_compared(self):
        page = self.open(model="mean")
        expect(page.locator("#answer .headline span")).to_have_text("cosine similarity")
        page.locator("#second").fill("")
        expect(page.locator("#answer .headline span")).to_have_text("numbers")
        self.look(page, "embedding")
        page.locator("#model").select_option(label="cross_encoder")
        page.locator("#second").fill("a cat")
        expect(page.locator("#answer_title")).to_have_text("Value")
        expect(page.locator("#words .text")).to_contain_text("cat")
        expect(page.locator("#answer .headline strong")).to_have_text(re.compile(r"^-?[\d.e-]+$"))
        self.look(page, "cross-encoder")


class ImageTest(Browser):
    repository = TESTDATA + "_images"

    def test_an_image_is_taken_and_its_patches_are_weighed(self):
        page = self.open(model="vit_classes")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "square.png")
            with open(path, "wb") as file:
                file.write(png(48, 48))
            page.locator("#image").set_input_files(path)
            expect(page.locator("#answer .headline strong")).not_to_be_empty()
        expect(page.locator("#words .image rect").first).to_be_attached()
        self.look(page, "image")
        # As a file that is dropped.
        page.evaluate("""(base64) => {
          const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)), dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([bytes], 'dropped.png', { type: 'image/png' }));
          document.getElementById('drop').dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true }));
        }""", base64.b64encode(png(32, 32)).decode())
        expect(page.locator("#drop span")).to_have_text("dropped.png")


class TokenTest(Browser):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = os.path.join(folder.name, "tokens")
        with open(path, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef\n")
        cls.flags = (f"--auth_token_file={path}",)
        super().setUpClass()

    def test_the_token_is_asked_for_and_not_stored(self):
        page = self.open()
        expect(page.locator("#error")).to_contain_text("token")
        expect(page.locator("#token")).to_be_focused()
        self.look(page, "token")
        page.keyboard.type("0123456789abcdef")
        page.keyboard.press("Enter")
        expect(page.locator("#answer .headline strong")).to_be_visible()
        stored = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.href]")
        self.assertEqual(stored[:3], [0, 0, ""])
        self.assertNotIn("0123456789abcdef", stored[3])
        page.reload()
        expect(page.locator("#error")).to_contain_text("token")
        self.errors = [error for error in self.errors if "status of 401" not in error]


if __name__ == "__main__":
    unittest.main()
