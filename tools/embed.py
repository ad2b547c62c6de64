"""Make the page that others embed from the built page: the same, without its frame, and asleep until it is touched.

Asleep it is the pre-built example alone: nothing of the runtime is fetched. static/embedded.js wakes it.
"""

from __future__ import annotations

import re

EARLY = '<script src="./static/early.js"></script>'
# What starts Python, or keeps the site for offline use; an embedded page does the first when touched, the second never.
STARTS = (
    EARLY,
    '<script type="module" src="./vendor/pyscript/core.js"></script>',
)
OFFLINE = '<script type="module" src="./static/offline.mjs"></script>'
NEVER = (
    OFFLINE,
    '<link rel="manifest" href="./static/manifest.webmanifest">',
    '<link rel="stylesheet" href="./static/article.css">',
)
ARTICLE = re.compile(r'<article id="article">.*?</article>', re.DOTALL)
LOOK = """<meta name="robots" content="noindex">
  <link rel="stylesheet" href="./static/embed.css">
  <script src="./static/embedded.js"></script>
  <template id="runtime">
    {starts}
  </template>
</head>"""
ASLEEP = """<header><h1 class="visually-hidden">Batch Size Optimizer</h1>
    <p class="asleep" id="asleep" hidden><button type="button" id="wake"></button> <span id="asleep-says"></span></p>
  </header>
  """
FULL = """<p class="full"><a data-full href="./" target="_blank" rel="noopener">Batch Size Optimizer</a>: computed in
      your browser; nothing leaves it.</p>
    """


def once(text: str, old: str, new: str) -> str:
    """Replace what stands once in a page or another text.

    Raises
    ------
    ValueError
        Where it stands there more or less often.
    """
    if text.count(old) != 1:
        raise ValueError(f"{text[:40]!r}: {text.count(old)} times {old}; once is needed")
    return text.replace(old, new)


def embedded(html: str) -> str:
    """Return the embedded page.

    Parameters
    ----------
    html : str
        The built page.

    Raises
    ------
    ValueError
        Where the page has not what is taken out of it.
    """
    html = once(html, '<html lang="en"', '<html lang="en" data-embed="asleep"')
    for part in (*STARTS, *NEVER):
        html = once(html, part, "")
    html, found = ARTICLE.subn("", html)
    if found != 1:
        raise ValueError("index.html: there is no article")
    html = once(html, "</head>", LOOK.format(starts="\n    ".join(STARTS)))
    html = once(html, '<main class="layout">', ASLEEP + '<main class="layout">')
    return once(html, "<footer>", "<footer>\n    " + FULL)
