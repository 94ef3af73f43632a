"""
The pencil of all pictures: boxes, text and arrows on a panel of its own.

Notebooks show an SVG as an image, so it cannot take its colours from the page. Each picture
brings a light panel with dark ink, which reads well in light and in dark themes. A rank has the
same colour everywhere and its number beside it, so that nothing hangs on colour alone.
"""

from html import escape

INK = "#1f2430"
FAINT = "#6b7280"
PANEL = "#fbfbfd"
LINE = "#9aa1ad"
RANK_COLOURS = (
    "#4c78a8", "#cf6f0c", "#3f9b5f", "#c2508f", "#7d5ba6", "#23898f", "#a8783c", "#7f8a2e",
)  # fmt: skip
FONT = "ui-sans-serif, 'DejaVu Sans', Helvetica, Arial, sans-serif"
CHAR_WIDTH = 0.62
"""
Width of an average character as a share of the font size, a little generous, so that labels fit.
"""


def rank_colour(rank):
    """
    Return the colour that a rank has in every picture.
    """
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def text_width(text, size=13):
    """
    Return the width in pixels that a text takes at most, near enough.
    """
    return len(str(text)) * size * CHAR_WIDTH


class Picture:
    """
    A finished picture, which draws itself in a notebook.

    Args:
        title: What it shows, in one line; screen readers read it.
        svg: The SVG text.
    """

    def __init__(self, title, svg):
        self.title = title
        self.svg = svg

    def __repr__(self):
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

    def __init__(self, width, height):
        self.width = width
        self.height = height
        self._shapes = []

    def box(self, x, y, width, height, fill="none", stroke=LINE, dashed=False, radius=6):
        """
        Draw a box with round corners.
        """
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}"{dash}/>'
        )

    def text(self, x, y, text, fill=INK, size=13, anchor="middle", bold=False):
        """
        Write one line; `y` is the middle of its height.
        """
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y + 0.35 * size:g}" fill="{fill}" font-size="{size:g}" '
            f'text-anchor="{anchor}"{weight}>{escape(str(text))}</text>'
        )

    def line(self, x1, y1, x2, y2, stroke=LINE, dashed=False):
        """
        Draw a straight line.
        """
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
            f'stroke-width="1.5"{dash}/>'
        )

    def chip(self, x, y, rank, width=70, height=26):
        """
        Draw the label of a rank: its number on its colour.
        """
        self.box(x, y, width, height, fill=rank_colour(rank), stroke="none", radius=13)
        self.text(x + width / 2, y + height / 2, f"rank {rank}", fill="#ffffff", bold=True)

    def picture(self, title):
        """
        Return the finished Picture.
        """
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" '
            f'height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'font-family="{escape(FONT)}">'
        )
        panel = f'<rect width="{self.width:g}" height="{self.height:g}" rx="8" fill="{PANEL}"/>'
        parts = [head, f"<title>{escape(title)}</title>", panel, *self._shapes, "</svg>"]
        return Picture(title, "\n".join(parts))
