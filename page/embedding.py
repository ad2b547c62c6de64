"""The texts that put the calculator into someone else's page, for the Share dialog and the documentation."""

from page import link
from page.format import escape

SCRIPT = '<script src="{address}static/embed.js" defer></script>'
ELEMENT = "<batch-size-optimizer{attributes}></batch-size-optimizer>"
FRAME = (
    '<iframe src="{address}embed.html#{link}" title="Batch Size Optimizer" loading="lazy" width="100%" height="900" '
    'allow="clipboard-write" style="border: 0"></iframe>'
)
INDENTED = "\n   "

# Where it goes: an id, a name, the text.
SNIPPETS = (
    ("html", "HTML, as high as its content", SCRIPT + "\n" + ELEMENT),
    ("iframe", "HTML, a plain frame", FRAME),
    ("mkdocs", "MkDocs (Markdown)", SCRIPT + "\n\n<div>" + ELEMENT + "</div>"),
    ("sphinx", "Sphinx (reStructuredText)", ".. raw:: html\n" + INDENTED + SCRIPT + INDENTED + ELEMENT),
    ("jupyter-book", "Jupyter Book 1, Sphinx with MyST", "```{raw} html\n" + SCRIPT + "\n" + ELEMENT + "\n```"),
    ("jupyter-book-2", "Jupyter Book 2, MyST", "```{iframe} {address}embed.html#{link}\n:width: 100%\n```"),
    (
        "docusaurus",
        "Docusaurus (MDX)",
        "{/* In docusaurus.config.js: scripts: [{ src: '{address}static/embed.js', defer: true }] */}\n\n" + ELEMENT,
    ),
)
NAMED = ("model", "gpu")


def snippet(kind: str, address: str, text: str, *, view: str = "all", theme: str = "auto") -> str:
    """
    The text to paste.

    `kind` is one of SNIPPETS; `address` that of the calculator's folder, with a slash at its end; `text` the link text
    of the scenario; `view` is memory, plan, tradeoff or all; `theme` auto, light or dark.
    """
    flat = link.read(text)
    rest = {key: flat[key] for key in flat if key not in NAMED}
    attributes = {key: str(flat[key]) for key in NAMED if key in flat}
    attributes["view"], attributes["theme"] = view, theme
    if rest:
        attributes["scenario"] = link.write(rest)
    named = "".join(
        f' {key}="{escape(attributes[key])}"' for key in NAMED + ("scenario", "view", "theme") if key in attributes
    )
    flat["view"], flat["theme"] = view, theme
    for found, _, template in SNIPPETS:
        if found == kind:
            filled = template.replace("{address}", address).replace("{attributes}", named)
            return filled.replace("{link}", escape(link.write(flat)) if "<iframe" in template else link.write(flat))
    raise ValueError(kind)
