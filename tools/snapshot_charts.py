"""Small charts as SVG, drawn with the page's own colours (snapshot_page.css) and without any script."""

import html as markup
import math

import snapshot_record

# A chart is as wide as a phone, so that its letters need not shrink there; on a wide page several stand side by side.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 210, 46, 328, 14, 168
COLOURS = 5  # .c0 ... of snapshot_page.css


def html(text):
    """Text for HTML and SVG, also within quotes: what is markup there is a character here, and control characters are
    shown as such."""
    return markup.escape(snapshot_record.escaped(text)).replace("&#x27;", "&#39;")


def short_bytes(count):
    """1.2 GB and 940 MB of bytes."""
    units = ["B", "kB", "MB", "GB", "TB"]
    u = 0
    while count >= 1000 and u + 1 < len(units):
        count, u = count / 1000, u + 1
    return f"{count:.{1 if count < 10 and u > 0 else 0}f} {units[u]}"


def short_number(v):
    """3.4k and 12 of anything."""
    if v >= 1e6:
        return f"{v / 1e6:.3g}M"
    if v >= 1e4:
        return f"{v / 1e3:.3g}k"
    return f"{v:.0f}" if v >= 100 else f"{v:.3g}"


def step_for(most):
    """1, 2 or 5 times a power of ten, so that at most five steps reach `most`."""
    raw = max(most, 1e-12) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5) if raw <= m * power), 10 * power)


class Axes:
    """Of lines that each are a list of points (x, y); `log_x`: base 2, for numbers of clients."""

    def __init__(self, lines, log_x):
        xs = [x for _, points in lines for x, _ in points]
        self.low_x, self.high_x, self.log_x = min(xs), max(xs), log_x
        high_y = max(0.0, *(y for _, points in lines for _, y in points))
        step = step_for(high_y)
        self.high_y = max(step, math.ceil(high_y / step) * step)

    def place(self, value):
        return math.log2(value) if self.log_x and value > 0 else value

    def x(self, value):
        width = self.place(self.high_x) - self.place(self.low_x)
        if width <= 0:
            return (LEFT + RIGHT) / 2
        return LEFT + (RIGHT - LEFT) * (self.place(value) - self.place(self.low_x)) / width

    def y(self, value):
        return BOTTOM - (BOTTOM - TOP) * value / self.high_y


def text_at(x, y, anchor, text):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html(text)}</text>'


def marks(low, high):
    """The multiples of a round step that are between the two."""
    step = step_for(high - low)
    for i in range(math.ceil(low / step), math.floor(high / step + 0.001) + 1):
        yield i * step


def grid(axes, lines):
    out = ""
    for v in marks(0, axes.high_y):
        y = axes.y(v)
        out += f'<line class="grid" x1="{LEFT:.1f}" y1="{y:.1f}" x2="{RIGHT:.1f}" y2="{y:.1f}"/>'
        out += text_at(LEFT - 5, y + 4, "end", short_number(v))
    along = [x for x, _ in lines[0][1]] if axes.log_x else marks(axes.low_x, axes.high_x)
    return out + "".join(text_at(axes.x(v), BOTTOM + 16, "middle", short_number(v)) for v in along)


def figure(title, height, content):
    return (f'<figure><figcaption>{html(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            f'aria-label="{html(title)}">{content}</svg>')


def line_chart(title, lines, x_name, y_name, log_x=False, dots=True):
    """Lines over one another, each a name and its points in the order of x, with an axis that begins at 0. Empty where
    there is nothing to draw."""
    lines = sorted(([name, points] for name, points in lines if points), key=lambda line: -len(line[1]))
    if not lines:
        return ""
    axes = Axes(lines, log_x)
    out = grid(axes, lines) + text_at((LEFT + RIGHT) / 2, BOTTOM + 34, "middle", f"{y_name} · {x_name}")
    legend = ""
    for i, (name, points) in enumerate(lines):
        colour = i % COLOURS
        if dots or len(points) == 1:
            out += "".join(f'<circle class="fill c{colour}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3"/>'
                           for x, y in points)
        path = "".join(f"{axes.x(x):.1f},{axes.y(y):.1f} " for x, y in points)
        out += f'<polyline class="line c{colour}" points="{path}"/>'
        if len(lines) > 1:
            legend += f'<span class="key"><i class="c{colour}"></i>{html(name)}</span>'
    legend = f'<div class="legend">{legend}</div>' if legend else ""
    return figure(title, HEIGHT, out) + legend + "</figure>\n"


def bar_chart(title, bars):
    """Bars, each a name, its value as it is shown, and its length in any unit."""
    if not bars:
        return ""
    row = 30
    longest = max(length for _, _, length in bars)
    out = ""
    for i, (name, value, length) in enumerate(bars):
        y = row * i
        width = max(1.0, (WIDTH - 4) * length / longest) if longest > 0 else 1.0
        out += text_at(2, y + 13, "start", name) + text_at(WIDTH - 2, y + 13, "end", value)
        out += f'<rect class="fill c0" x="2" y="{y + 18:.1f}" width="{width:.1f}" height="8" rx="2"/>'
    return figure(title, row * len(bars) + 4, out) + "</figure>\n"


def strip(values):
    """Readings as dots on one line, for a table's cell: how far they scatter about their middle."""
    if not values:
        return ""
    middle = (min(values) + max(values)) / 2
    # The strip is a tenth to either side of the middle, or as much as it takes.
    reach = max(0.1 * abs(middle), max(values) - middle, 1e-12)
    places = (60 + 56 * min(max((v - middle) / reach, -1), 1) for v in values)
    dots = "".join(f'<circle class="fill c0" cx="{x:.1f}" cy="7" r="2.5"/>' for x in places)
    return ('<svg class="strip" viewBox="0 0 120 14" aria-hidden="true"><line class="grid" x1="2" y1="7" x2="118" '
            f'y2="7"/>{dots}</svg>')
