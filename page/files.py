"""Files of the person's own: read without leaving the browser, copied, downloaded; figures as SVG and PNG.

A page inside another's frame may be refused the clipboard and downloads: what is offered can always be selected too.
"""

from typing import Any

from pyscript import document, window
from pyscript.ffi import create_proxy, to_js

LARGEST_BYTES = 1_000_000
PNG_SCALE = 2
REFUSED = "This browser lets no page copy here: the text is selected, copy it with the keyboard."
SVG_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
FONT = "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


def by_id(name: str) -> Any:
    """The element with this id, or None."""
    return document.getElementById(name)


def text_of(element: Any) -> str:
    """What a text box or another element holds."""
    held = element.value if element.tagName in ("TEXTAREA", "INPUT") else element.textContent
    return str(held)


def select(element: Any) -> None:
    """Select all text of an element, for the keyboard's copy."""
    if element.tagName in ("TEXTAREA", "INPUT"):
        element.select()
    else:
        document.defaultView.getSelection().selectAllChildren(element)


def copy(element: Any, say: Any) -> None:
    """Copy an element's text, or select it where the browser refuses; `say` gets what happened."""

    # MicroPython drops the one argument of a promise that holds nothing.
    def done(*_: Any) -> None:
        say("Copied.")

    def refused(*_: Any) -> None:
        select(element)
        say(REFUSED)

    try:
        window.navigator.clipboard.writeText(text_of(element)).then(create_proxy(done), create_proxy(refused))
    except Exception:
        refused()


def download(blob: Any, name: str) -> None:
    """Offer a blob as a file."""
    link = document.createElement("a")
    link.href = window.URL.createObjectURL(blob)
    link.download = name
    link.click()
    window.URL.revokeObjectURL(link.href)


def text_blob(text: str, kind: str) -> Any:
    """A text as a blob of this media type."""
    return window.Blob.new(to_js([text]), to_js({"type": kind}))


def read(file: Any, got: Any, refused: Any) -> None:
    """Read a chosen or dropped file as text, here in the browser."""
    if file.size > LARGEST_BYTES:
        refused(f"{file.name} is larger than 1 MB: a config.json has a few kB.")
        return
    file.text().then(create_proxy(got))


def standalone(svg: Any) -> str:
    """A figure of the page as an SVG file: with the colours that the page's theme gives it now, on its background."""
    text = str(window.XMLSerializer.new().serializeToString(svg))
    style = document.defaultView.getComputedStyle(document.documentElement)
    for piece in text.split("var(--")[1:]:
        name = piece.partition(")")[0]
        text = text.replace(f"var(--{name})", str(style.getPropertyValue(f"--{name}")).strip())
    card = str(style.getPropertyValue("--card")).strip()
    return SVG_HEAD + text.replace("<svg ", f'<svg style="background: {card}; font-family: {FONT}" ', 1)


def table_csv(table: Any) -> str:
    """A table of the page as CSV."""
    lines = []
    for row in table.querySelectorAll("tr"):
        cells = [str(cell.textContent) for cell in row.querySelectorAll("th, td")]
        quoted = ['"' + cell.replace('"', '""') + '"' if "," in cell or '"' in cell else cell for cell in cells]
        lines.append(",".join(quoted))
    return "\n".join(lines) + "\n"


class FigureFiles:
    """The dialog in which a figure is taken away: seen as an image, as SVG text, and as files."""

    def __init__(self) -> None:
        self.name = ""
        self.canvas: Any = None

    def open(self, figure: Any, name: str) -> None:
        """Show a figure's files."""
        drawings = figure.querySelectorAll(".drawing")
        seen = [drawing for drawing in drawings if drawing.offsetParent is not None]
        if not seen:
            return
        svg = seen[0].querySelector("svg")
        self.name = name
        by_id("figure-svg").value = standalone(svg)
        by_id("figure-csv").value = table_csv(figure.querySelector("table"))
        by_id("figure-said").textContent = ""
        self._draw(svg.clientWidth, svg.clientHeight)
        by_id("figure-files").showModal()

    def _draw(self, width: int, height: int) -> None:
        image = document.createElement("img")
        canvas = document.createElement("canvas")
        canvas.width, canvas.height = width * PNG_SCALE, height * PNG_SCALE

        def loaded(_event: Any) -> None:
            canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height)
            self.canvas = canvas
            by_id("figure-png").src = canvas.toDataURL("image/png")

        image.addEventListener("load", create_proxy(loaded))
        image.src = "data:image/svg+xml;charset=utf-8," + str(window.encodeURIComponent(by_id("figure-svg").value))

    def save(self, kind: str) -> None:
        """Download the figure as svg, png, or its numbers as csv."""
        name = f"{self.name}.{kind}"
        if kind == "png":
            self.canvas.toBlob(create_proxy(lambda blob: download(blob, name)), "image/png")
        else:
            media = {"svg": "image/svg+xml", "csv": "text/csv"}[kind]
            download(text_blob(by_id(f"figure-{kind}").value, media), name)
        by_id("figure-said").textContent = f"{name} goes to your downloads, unless the browser forbids it here."
