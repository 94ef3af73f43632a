"""
The pencil of all pictures: boxes, text and arrows on a panel of its own.

Notebooks show an SVG as an image, so it cannot take its colours from the page. Each picture
brings a light panel with dark ink, which reads well in light and in dark themes. A rank has the
same colour everywhere and its number beside it, so that nothing hangs on colour alone.
"""

import re
import unicodedata
from collections.abc import Iterable
from html import escape
from typing import Literal

INK = "#1f2430"
FAINT = "#6b7280"
PANEL = "#fbfbfd"
LINE = "#9aa1ad"
RANK_COLOURS = (
    "#4c78a8", "#cf6f0c", "#3f9b5f", "#c2508f", "#7d5ba6", "#23898f", "#a8783c", "#7f8a2e",
)  # fmt: skip
PATTERNS = ("solid", "hatch", "dots", "grid", "hollow", "lines")
"""
Fills that differ without colour, for kinds of things; colour tells the rank.
"""
FONT = "ui-sans-serif, 'DejaVu Sans', Helvetica, Arial, sans-serif"
CHAR_WIDTH = 0.62
"""
Width of an average character as a share of the font size, a little generous, so that labels fit.
"""


def rank_colour(rank: int) -> str:
    """
    Return the colour that a rank has in every picture.
    """
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def text_width(text: object, size: float = 13) -> float:
    """
    Return the width in pixels that a text takes at most, near enough.
    """
    # Characters of East Asian scripts and emoji are as wide as they are high, and a little more.
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in str(text))
    return (len(str(text)) - wide) * size * CHAR_WIDTH + wide * size * 1.1


def shorten(text: object, most: int = 24) -> str:
    """
    Return a text that is no longer than a number of characters; its end tells if it was cut.
    """
    text = str(text)
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def plain(text: object) -> str:
    """
    Return a text that XML can hold: characters that it forbids become a mark.
    """
    return re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(text))


class Picture:
    """
    A finished picture, which draws itself in a notebook.

    Args:
        title: A line that says what it shows; screen readers read it.
        svg: The SVG text.
    """

    def __init__(self, title: str, svg: str) -> None:
        self.title = title
        self.svg = svg

    def __repr__(self) -> str:
        return f"<Picture: {self.title}>"

    def _repr_svg_(self):
        return self.svg


class Canvas:
    """
    Collect shapes, then become a Picture.

    Args:
        width: Pixels.
        height: Pixels.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width = width
        self.height = height
        self._shapes = []
        self._patterns = {}

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "none",
        stroke: str = LINE,
        dashed: bool = False,
        radius: float = 6,
        stroke_width: float = 1,
    ) -> None:
        """
        Draw a box with round corners.
        """
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        if stroke_width != 1:
            dash += f' stroke-width="{stroke_width:g}"'
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}"{dash}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: object,
        fill: str = INK,
        size: float = 13,
        anchor: Literal["start", "middle", "end"] = "middle",
        bold: bool = False,
    ) -> None:
        """
        Write one line; `y` is the middle of its height. The canvas grows if it does not fit.
        """
        text = plain(text)
        beyond = {"start": 1, "middle": 0.5, "end": 0}[anchor] * text_width(text, size)
        self.width = max(self.width, x + beyond + 8)
        self.height = max(self.height, y + size / 2 + 4)
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y + 0.35 * size:g}" fill="{fill}" font-size="{size:g}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, dashed: bool = False
    ) -> None:
        """
        Draw a straight line.
        """
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
            f'stroke-width="1.5"{dash}/>'
        )

    def chip(self, x: float, y: float, rank: int, width: float = 70, height: float = 26) -> None:
        """
        Draw the label of a rank: its number on its colour.
        """
        self.box(x, y, width, height, fill=rank_colour(rank), stroke="none", radius=13)
        self.text(x + width / 2, y + height / 2, f"rank {rank}", fill="#ffffff", bold=True)

    def tag(self, x: float, y: float, text: object, size: float = 11) -> None:
        """
        Write one line in the middle of a light pill of its own, so that it reads on any pattern.
        """
        width = text_width(text, size) + 6
        self.box(x - width / 2, y - 8, width, 16, fill=PANEL, stroke="none", radius=4)
        self.text(x, y, text, size=size)

    def band(self, points: Iterable[tuple[float, float]], fill: str) -> None:
        """
        Fill the shape between some points, faintly, so that what crosses it can be seen.
        """
        corners = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(f'<polygon points="{corners}" fill="{fill}" fill-opacity="0.22"/>')

    def fill(self, pattern: str, colour: str) -> str:
        """
        Return the fill that shows a colour in one of PATTERNS.
        """
        if pattern == "solid":
            return colour
        if pattern == "hollow":
            return "#ffffff"
        # The name says what it looks like, so two pictures on one page cannot spoil each other.
        name = f"{pattern}-{colour.lstrip('#')}"
        ink = f'stroke="{colour}" stroke-width="2"'
        shape = {
            "hatch": f'<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" {ink}/>',
            "dots": f'<circle cx="4" cy="4" r="2.2" fill="{colour}"/>',
            "grid": f'<path d="M0 4H8M4 0V8" {ink}/>',
            "lines": f'<path d="M0 4H8" {ink}/>',
        }[pattern]
        self._patterns[name] = (
            f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" fill="#ffffff"/>{shape}</pattern>'
        )
        return f"url(#{name})"

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str]]) -> float:
        """
        Draw a row of samples with their names, and return where it ends.

        Args:
            x: Left edge.
            y: Middle of its height.
            entries: Pairs (name, pattern).
        """
        for name, pattern in entries:
            self.box(x, y - 7, 22, 14, fill=self.fill(pattern, FAINT), stroke=FAINT, radius=3)
            self.text(x + 28, y, name, size=12, anchor="start")
            x += 28 + text_width(name, 12) + 16
        return x

    def picture(self, title: str) -> Picture:
        """
        Return the finished Picture.
        """
        title = plain(title)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" '
            f'height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'font-family="{escape(FONT)}">'
        )
        panel = f'<rect width="{self.width:g}" height="{self.height:g}" rx="8" fill="{PANEL}"/>'
        defs = [f"<defs>{''.join(self._patterns.values())}</defs>"] if self._patterns else []
        parts = [head, f"<title>{escape(title)}</title>", *defs, panel, *self._shapes, "</svg>"]
        return Picture(title, "\n".join(parts))
