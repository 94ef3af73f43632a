"""
Tests of the site in a browser: on a laptop and a phone, in light and dark, and without scripts.
"""

import re

import pytest
from built_site import built_site
from lab_page import SCREENSHOTS

pytestmark = [pytest.mark.timeout(600)]

SIZES = {"laptop": (1280, 900), "phone": (390, 844)}
LOOKED_AT = (
    "index",
    "lessons/00_ranks",
    "lessons/03_ring",
    "exercises/03_ring",
    "claims",
    "api/ring",
)
"""
Pages of each kind, of which the tests take screenshots.
"""

_PARTS = 3  # screenshots of a page, from its top
_TOO_WIDE = """() => {
    const width = document.documentElement.clientWidth
    if (document.documentElement.scrollWidth <= width) return []
    const scrolls = (it) => it && it !== document.body
        && (['auto', 'scroll', 'hidden'].includes(getComputedStyle(it).overflowX)
            || scrolls(it.parentElement))
    return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('article *')]
        .filter(it => it.getBoundingClientRect().right > width + 1 && !scrolls(it.parentElement))
        .map(it => `${it.tagName}.${it.className}: ${it.textContent.slice(0, 60)}`)]
}"""
_HOLES = """() => [...document.querySelectorAll('img')]
    .filter(it => !it.complete || !it.naturalWidth).map(it => it.src)"""
# The lowest contrast of a text with its background on a page, computed as in the WCAG.
_CONTRAST = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number)
    const light = (colour) => {
        const [r, g, b] = numbers(colour).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const below = (it) => {
        const colour = it ? getComputedStyle(it).backgroundColor : 'rgb(255, 255, 255)'
        const [,,, alpha = 1] = numbers(colour)
        return alpha > 0.5 ? colour : below(it.parentElement)
    }
    const texts = [...document.querySelectorAll('article .cell *, article p, article td, summary')]
        .filter(it => [...it.childNodes].some(c => c.nodeType === 3 && c.textContent.trim()))
    return texts.map(it => {
        const pair = [light(getComputedStyle(it).color), light(below(it))].sort((a, b) => b - a)
        return [(pair[0] + 0.05) / (pair[1] + 0.05), it.className, it.textContent.slice(0, 40)]
    }).sort((a, b) => a[0] - b[0])[0]
}"""
_OPEN_ALL = "() => document.querySelectorAll('details').forEach(it => { it.open = true })"


@pytest.fixture
def site():
    """
    Return the folder of the built site.
    """
    return built_site()


@pytest.fixture
def look(chromium, site):
    """
    Yield a function that opens a page with a size and a theme. The page's `asked` lists its
    requests.
    """
    contexts = []

    def make(size="laptop", theme="light", **options):
        width, height = SIZES[size]
        contexts.append(
            chromium.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme, **options
            )
        )
        page = contexts[-1].new_page()
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.mark.parametrize("size", SIZES)
def test_pages_never_scroll_sideways_and_ask_for_nothing(look, site, size):
    """
    No page scrolls sideways, which would be unreadable on a phone: wide parts scroll in their own
    boxes. No picture is missing, and no page makes a network request.
    """
    page = look(size)
    wide, holes = {}, {}
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        page.evaluate(_OPEN_ALL)
        if found := page.evaluate(_TOO_WIDE):
            wide[path.name] = found
        if found := page.evaluate(_HOLES):
            holes[path.name] = found
    assert wide == {}
    assert holes == {}
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    ("system", "chosen"),
    [("light", "auto"), ("dark", "auto"), ("light", "dark"), ("dark", "light")],
)
def test_pages_can_be_read_in_both_themes(look, site, system, chosen):
    """
    All texts have enough contrast in both themes, whether the system or the reader chooses the
    theme.
    """
    page = look("laptop", system)
    # as the page's button sets it
    page.add_init_script(f"localStorage.setItem('theme', '{chosen}')")
    for path in sorted((site / "lessons").glob("*.html")):
        page.goto(path.as_uri())
        page.evaluate(_OPEN_ALL)
        lowest, *where = page.evaluate(_CONTRAST)
        assert lowest > 4.5, (path.name, lowest, where)


@pytest.mark.parametrize("with_scripts", [True, False])
def test_answers_open_on_a_click(look, site, with_scripts):
    """
    A click opens an answer even in a browser without scripts, and opens only that answer.
    """
    page = look(java_script_enabled=with_scripts)
    page.goto((site / "lessons" / "03_ring.html").as_uri())
    first, second = (page.locator("details.answer").nth(n).get_by_text("it was") for n in (0, 1))
    assert not first.is_visible()
    page.locator("details.answer > summary").first.click()
    assert first.is_visible()
    assert second.is_hidden()


def test_answers_open_all_at_once(look, site):
    """
    One button opens and closes all answers of a page, for teachers who prepare a class.
    """
    page = look()
    page.goto((site / "lessons" / "03_ring.html").as_uri())
    page.get_by_role("button", name="Open all answers").click()
    folds = page.locator("details.answer")
    assert all(folds.nth(i).get_attribute("open") is not None for i in range(folds.count()))
    page.get_by_role("button", name="Close all answers").click()
    page.get_by_role("button", name="Open all answers").wait_for()
    assert page.locator("details.answer[open]").count() == 0


def test_search_finds_a_lesson_without_a_network(look, site):
    """
    The search finds a lesson without a network, because its index is a file next to the pages.
    """
    page = look()
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").fill("bucket")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a")
    found.filter(has_text="How do replicas stay equal?").first.wait_for()
    found.first.click()  # lessons must come before API pages
    assert re.search(r"/lessons/\d\d_", page.url)
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_are_photographed(look, site, size, theme):
    """
    Screenshots of pages are stored for people, because no test can judge whether a page looks good.
    """
    page = look(size, theme)
    SCREENSHOTS.mkdir(exist_ok=True)
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        page.evaluate(_OPEN_ALL)
        for part in range(_PARTS):
            page.evaluate(f"window.scrollTo({{top: {part} * innerHeight, behavior: 'instant'}})")
            file = f"site_{name.replace('/', '_')}_{size}_{theme}_{part}.png"
            page.screenshot(path=SCREENSHOTS / file)
            assert (SCREENSHOTS / file).stat().st_size > 1000
