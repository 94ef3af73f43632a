"""
Tests of the class board in a real browser, with up to thirty learners who send at once.
"""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from class_board import NOW_S, BoardThread, predicted, row, state_of, tried
from playwright.sync_api import expect

from ddp_lessons.course.classroom.board import app
from ddp_lessons.course.classroom.board.roster import People

pytestmark = [pytest.mark.timeout(300)]

NUM_LEARNERS = 30
PATIENCE_MS = 30_000
NASTY = "<img src=x onerror=alert(1)>"
expect.set_options(timeout=PATIENCE_MS)
SIZES = {"laptop": (1280, 900), "phone": (390, 844)}


@pytest.fixture
def people(tmp_path):
    """
    Yield the People of a board.
    """
    found = People(tmp_path / "board")
    yield found
    found.close()


@pytest.fixture
def open_page(chromium):
    """
    Yield a function that opens a board's page as the teacher does. No page may have an error.
    """
    contexts, faults = [], []

    def make(board, size="laptop", scheme="light"):
        width, height = SIZES[size]
        contexts.append(
            chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message) or dialog.dismiss())
        page.goto(f"{board.url}/?token={board.secret}")
        return page

    yield make
    for context in contexts:
        context.close()
    assert faults == []


def token_of(number):
    """
    Return the token of a simulated learner.
    """
    return f"{number:040}"


def join_all(board):
    """
    Let thirty learners join a board at once.
    """
    with ThreadPoolExecutor(NUM_LEARNERS) as pool:
        joined = pool.map(lambda n: board.join(f"learner {n:02}", token_of(n)), range(NUM_LEARNERS))
        assert list(joined) == [200] * NUM_LEARNERS


def send_all(board, told):
    """
    Let thirty learners send at once.

    Args:
        board: The BoardThread.
        told: Function that returns a learner's state, by the learner's number.
    """
    with ThreadPoolExecutor(NUM_LEARNERS) as pool:
        sent = pool.map(lambda n: board.put(told(n), token_of(n)), range(NUM_LEARNERS))
        assert list(sent) == [200] * NUM_LEARNERS


def lines(page):
    """
    Return the texts of the cells of each row of the table.
    """
    return [line.locator("th, td").all_inner_texts() for line in page.locator("tbody tr").all()]


def test_thirty_learners_send_at_once_and_the_page_shows_all(people, open_page):
    """
    The page shows all states of thirty learners who send at once, without being loaded again.
    """
    with BoardThread(people, secret=people.teacher) as board:
        page = open_page(board)
        expect(page.locator("#state")).to_have_text("0 on the board")
        join_all(board)
        expect(page.locator("#state")).to_have_text("30 on the board")
        send_all(board, lambda n: state_of({}, {"lines": predicted(1 if n % 3 else 4)}))
        expect(page.locator("#spread li")).to_have_count(2)
        expect(page.locator("#spread li").nth(0)).to_have_text(re.compile(r"^1\s*20$"))
        expect(page.locator("#spread li").nth(1)).to_have_text(re.compile(r"^4\s*10$"))
        for last in ("view", "late"):
            send_all(board, lambda n, last=last: state_of({"00.1": tried(*[last] * (1 + n % 2))}))
        expect(page.locator("td.tried", has_text="late")).to_have_count(NUM_LEARNERS)
        page.get_by_label("Lesson").select_option("00_ranks")
        found = lines(page)
        assert [one[0] for one in found] == [f"learner {n:02}" for n in range(NUM_LEARNERS)]
        assert [one[2] for one in found] == [f"{1 + n % 2} late" for n in range(NUM_LEARNERS)]


def test_the_page_comes_back_with_the_board(people, open_page, tmp_path):
    """
    If the board ends, the page says so, and reconnects once the board runs again.
    """
    with BoardThread(people, secret=people.teacher) as board:
        port = board.port
        page = open_page(board)
        board.join("Ada")
        expect(page.locator("#state")).to_have_text("1 on the board")
    expect(page.locator("#state")).to_have_text("the board does not answer; trying again")
    with BoardThread(people, port, secret=people.teacher) as board:
        expect(page.locator("#state")).to_have_text("1 on the board")
        board.join("Bo", "o" * 40)
        expect(page.locator("#state")).to_have_text("2 on the board")


def test_names_and_answers_are_shown_as_text(people, open_page):
    """
    Names and mistakes are shown as plain text, because any user with the class code can send HTML.
    """
    with BoardThread(people, secret=people.teacher) as board:
        board.join(NASTY)
        task = tried("view") | {"tries": [{"at_s": NOW_S, "mistake": NASTY}]}
        board.put(state_of({"00.1": task}, {"lines": predicted(1e300)}))
        page = open_page(board)
        expect(page.locator("tbody th")).to_have_text(NASTY)
        assert page.locator("img").count() == 0
        assert page.evaluate("document.querySelectorAll('script').length") == 1


def test_learners_see_no_page_and_no_row_but_their_own(people, chromium):
    """
    The class code and a learner's token give no access to the page or to the rows of others.
    """
    with BoardThread(people, secret=people.teacher) as board:
        join_all(board)
        page = chromium.new_page()
        try:
            for path in ("/", "/events", "/board.csv", f"/?token={people.code}"):
                answer = page.goto(board.url + path)
                assert answer.status == 403
                assert "learner" not in page.content()
        finally:
            page.close()
        assert board.put(state_of({"00.1": tried(None)}), token_of(99)) == 401
        assert all(row.state["tasks"] == {} for row in people.rows())


def test_names_can_be_hidden_from_the_projector(people, open_page):
    """
    "Hide names" hides the names of learners who are stuck from the projector, and still shows the
    answers of the class.
    """
    with BoardThread(people, secret=people.teacher) as board:
        board.join("Ada")
        board.put(state_of({"00.1": tried("view", "view", "view")}, {"lines": predicted(4)}))
        page = open_page(board)
        expect(page.get_by_text("Ada at 00.1 my_items")).to_be_visible()
        page.get_by_role("button", name="Hide names").click()
        assert page.get_by_text("Ada").locator("visible=true").count() == 0
        expect(page.locator("#spread li")).to_be_visible()
        expect(page.get_by_text("00.1 my_items: view")).to_be_visible()
        expect(page.get_by_text("Work on a copy.")).to_be_visible()


def test_logins_stand_beside_other_names_and_are_hidden_with_them(people, open_page):
    """
    The login of a hub's user stands beside a chosen name wherever that name does, in its own line
    of the table, so that a long name cannot push it out of sight. "Hide names" hides it.
    """
    name = "l\u0435arner01 " + "x" * 29  # with a Cyrillic letter
    stuck = state_of({"00.1": tried("view", "view", "view")})
    people.let_in_user("learner03", name)
    people.put_user("learner03", stuck, NOW_S)
    people.put_user("learner01", state_of(), NOW_S)
    with BoardThread(people, secret=people.teacher) as board:
        page = open_page(board)
        expect(page.locator("tbody th")).to_have_text(["learner01", f"{name} (login learner03)"])
        expect(page.locator("#stuck-list b + .login")).to_have_text("(login learner03)")
        login, cell = page.locator("th .login").nth(1), page.locator("tbody th").nth(1)
        assert login.bounding_box()["x"] < cell.bounding_box()["x"] + 20
        assert login.evaluate("node => node.scrollWidth <= node.clientWidth")
        page.get_by_role("button", name=f"Remove {name} (login learner03)").click()
        expect(page.locator("#whom")).to_have_text(f"Remove {name} (login learner03)?")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Hide names").click()
        assert page.get_by_text("learner0").locator("visible=true").count() == 0


def test_the_page_comes_back_after_an_error_of_http(people, open_page, monkeypatch):
    """
    The page reconnects after an answer of 503, such as a hub's proxy gives while the board is
    away. A browser by itself gives up then.
    """
    monkeypatch.setattr(app, "_MOST_STREAMS", 0)
    with BoardThread(people, secret=people.teacher) as board:
        page = open_page(board)
        expect(page.locator("#state")).to_have_text("the board does not answer; trying again")
        monkeypatch.undo()
        expect(page.locator("#state")).to_have_text("0 on the board")


def test_a_teacher_removes_a_row_after_a_question(people, open_page):
    """
    A teacher can remove a row after a question, which a wrong key or click does not confirm.
    """
    with BoardThread(people, secret=people.teacher) as board:
        board.join(NASTY)
        board.join("Bo", "o" * 40)
        page = open_page(board)
        page.get_by_role("button", name=f"Remove {NASTY}").click()
        dialog = page.get_by_role("dialog", name=f"Remove {NASTY}?")
        expect(dialog).to_be_visible()
        assert page.locator("img").count() == 0
        page.keyboard.press("Enter")  # the harmless button has the focus
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name=f"Remove {NASTY}").click()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        assert len(people.rows()) == 2
        page.get_by_role("button", name=f"Remove {NASTY}").click()
        # The table is redrawn while the dialog is open.
        assert board.put(state_of({"00.1": tried("view")}), "o" * 40) == 200
        expect(page.locator("td.tried")).to_have_count(1)
        dialog.get_by_role("button", name="Remove it").click()
        expect(dialog).to_be_hidden()
        expect(page.locator("tbody th")).to_have_text(["Bo"])
        assert board.put(state_of()) == 403


def test_a_removal_that_fails_is_told(people, open_page):
    """
    If the board refuses a removal, the page says so and keeps the row.
    """
    with BoardThread(people, secret=people.teacher) as board:
        board.join("Ada")
        page = open_page(board)
        page.get_by_role("button", name="Remove Ada").click()
        page.context.clear_cookies()
        page.get_by_role("button", name="Remove it").click()
        expect(page.locator("#failed")).to_have_text("It is still there: the board answers 403.")
        expect(page.locator("tbody th")).to_have_text(["Ada"])


def test_a_row_can_be_removed_while_the_room_is_busy(people, open_page):
    """
    A click works even if the page is redrawn between press and release of the mouse button.
    """
    with BoardThread(people, secret=people.teacher) as board:
        board.join("Ada")
        page = open_page(board)
        page.get_by_role("button", name="Remove Ada").hover()
        page.mouse.down()
        board.join("Bo", "o" * 40)
        expect(page.locator("#state")).to_have_text("2 on the board")
        page.mouse.up()
        expect(page.get_by_role("dialog", name="Remove Ada?")).to_be_visible()
        expect(page.locator("tbody th")).to_have_text(["Ada", "Bo"])


class Rows:
    """
    A source of given rows for a board.
    """

    def __init__(self, rows):
        self._rows = rows

    def rows(self):
        """
        Return the rows.
        """
        return self._rows


def room():
    """
    Return the rows of thirty learners in various states.
    """
    names = ["Ada", "Bo and Cy", "Dimitra", "Émile", NASTY, "ein sehr langer Name, der nie endet"]
    found = []
    for number in range(NUM_LEARNERS):
        ways = (tried("view", "view", "view"), tried("late", None), tried("view", hints=2), tried())
        told = {"lines": predicted(1 + number % 4, was=4 if number % 2 else None)}
        name = names[number] if number < len(names) else f"pair {number}"
        tasks = {"00.1": ways[number % 4]} if number else {}
        found.append(row(name, tasks, told, key=f"{number:064}"))
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", sorted(SIZES))
def test_page_fits_a_projector_and_a_phone(open_page, size, scheme, tmp_path):
    """
    On a projector and on a phone the page does not scroll sideways, in light and dark, with names
    and without.
    """
    with BoardThread(sources=[Rows(room())], clock=lambda: NOW_S + 130) as board:
        page = open_page(board, size, scheme)
        expect(page.locator("tbody tr")).to_have_count(NUM_LEARNERS)
        too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(too_wide)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        expect(page.locator("#stuck-list b")).to_have_count(7)
        folder = os.environ.get("DDP_LESSONS_SCREENSHOTS") or tmp_path
        page.screenshot(path=f"{folder}/board-{size}-{scheme}.png", full_page=True)
        page.get_by_role("button", name="Hide names").click()
        assert not page.evaluate(too_wide)
        page.screenshot(path=f"{folder}/board-{size}-{scheme}-projector.png", full_page=True)


JOIN = """
from ddp_lessons import join_board, ok, predict
join_board("{url}", code="{code}", name="Ada and Grace")
"""
PREDICT = 'predict("lines", 3)'
RUN = 'ok("4 processes answered", lines=4)'


def test_a_learner_joins_in_jupyterlab_and_the_teacher_follows(
    people, open_page, new_page, make_server
):
    """
    After a learner has joined in a cell, predictions and results appear on the board automatically,
    and texts of answers do not.
    """
    lab = new_page(make_server())
    with BoardThread(people, secret=people.teacher) as board:
        page = open_page(board)
        lab.open_notebook("join.ipynb", JOIN.format(url=board.url, code=people.code), PREDICT, RUN)
        assert "you are on the board as Ada and Grace" in lab.run_cell(0)
        expect(page.locator("tbody th")).to_have_text("Ada and Grace")
        lab.run_cell(1)
        expect(page.locator("#spread li")).to_have_text(re.compile(r"^3\s*1$"))
        expect(page.locator("td.said")).to_have_count(1)
        lab.run_cell(2)
        expect(page.locator("td.held")).to_have_count(1)
        assert "processes" not in board.board.told()


def test_what_the_page_is_told_holds_no_code(people):
    """
    The page gets no code of learners, even if a changed client sends it to the board.
    """
    with BoardThread(people, secret=people.teacher) as board:
        board.join("Ada")
        task = tried("view") | {"code": "def all_reduce(tensor): return tensor"}
        board.put(state_of({"00.1": task}) | {"cells": ["import os"]})
        told = json.dumps(json.loads(board.board.told()))
    assert '"view"' in told
    assert "tensor" not in told
    assert "import os" not in told
