"""Draw a terminal's text as an SVG picture: terminal.py TITLE < text > picture.svg.

No dependency and no web font, so the pictures of the README look the same everywhere and can be
made anew from a real run: `apportion status | python3 scripts/terminal.py 'apportion status'`.
"""

from __future__ import annotations

import sys
from xml.sax.saxutils import escape

CHAR, LINE, PAD, BAR = 7.85, 19, 16, 34
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def draw(title: str, text: str) -> str:
    """Return the picture; lines that begin with `$ ` are commands, capitals are headings."""
    lines = text.rstrip("\n").split("\n")
    width = round(max(map(len, lines)) * CHAR + 2 * PAD)
    height = len(lines) * LINE + BAR + PAD
    dots = "".join(
        f'<circle cx="{PAD + 4 + n * 18}" cy="{BAR / 2}" r="5.5" fill="{color}"/>'
        for n, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    rows = "".join(_row(line, BAR + LINE * (n + 0.7)) for n, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}" font-size="13">'
        f'<rect width="100%" height="100%" rx="8" fill="#16181d"/>{dots}'
        f'<text x="{width / 2}" y="{BAR / 2 + 5}" fill="#8b919b" text-anchor="middle">'
        f"{escape(title)}</text>{rows}</svg>\n"
    )


def _row(line: str, y: float) -> str:
    color = "#d7dae0"
    if line.startswith("$ "):
        color = "#7ee787"
    elif line[:1].isalpha() and line == line.upper():
        color = "#79c0ff"
    # textLength keeps the columns straight whatever monospace font the reader has.
    length = f' textLength="{len(line) * CHAR:.1f}"' if line else ""
    return (
        f'<text x="{PAD}" y="{y:.1f}" fill="{color}" xml:space="preserve"{length}>'
        f"{escape(line)}</text>"
    )


if __name__ == "__main__":
    sys.stdout.write(draw(sys.argv[1], sys.stdin.read()))
