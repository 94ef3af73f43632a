"""
The site as it is seen: on a laptop and on a phone, in light and in dark, and without scripts.
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
Pages of each kind, of which screenshots are kept.
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
# The contrast of a text with what is below it, as the WCAG reckons it: the lowest of a page.
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
    Give the folder of the built site.
    """
    return built_site()


@pytest.fixture
def look(chromium, site):
    """
    Give a function from a size and a theme to a page that notes what it asks the network for.
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
    On a phone, a page that moves sideways cannot be read; what is wide scrolls in its own box.
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
    Black on black is what notebooks look like in a theme that does not know them.
    """
    page = look("laptop", system)
    page.add_init_script(f"localStorage.setItem('theme', '{chosen}')")  # as the page's button does
    for path in sorted((site / "lessons").glob("*.html")):
        page.goto(path.as_uri())
        page.evaluate(_OPEN_ALL)
        lowest, *where = page.evaluate(_CONTRAST)
        assert lowest > 4.5, (path.name, lowest, where)


@pytest.mark.parametrize("with_scripts", [True, False])
def test_answers_open_on_a_click(look, site, with_scripts):
    """
    A fold that needs a script is shut for ever where scripts are not let in.
    """
    page = look(java_script_enabled=with_scripts)
    page.goto((site / "lessons" / "03_ring.html").as_uri())
    told = page.get_by_text("it was 3600")
    assert not told.is_visible()
    page.locator("details.answer > summary").first.click()
    assert told.is_visible()
    assert page.get_by_text("it was 6").first.is_hidden()


def test_answers_open_all_at_once(look, site):
    """
    Who prepares a class does not click seven times a page.
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
    The index lies beside the pages, so a search works from a stick, too.
    """
    page = look()
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").fill("bucket")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a")
    found.filter(has_text="How do replicas stay equal?").first.wait_for()
    found.first.click()  # a lesson is what one looks for, before the name of a class
    assert re.search(r"/lessons/\d\d_", page.url)
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_are_photographed(look, site, size, theme):
    """
    Nobody can test whether a page is good to look at: screenshots are kept for people.
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
