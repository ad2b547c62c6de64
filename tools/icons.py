"""Draw the PNG icons that installing the page asks for from static/icon.svg. Run it after that has changed."""

from pathlib import Path

from playwright.sync_api import sync_playwright

from tools import browser

STATIC = Path(__file__).resolve().parent.parent / "static"
# Name, size in pixels, share of the size that the drawing takes: a maskable icon may be cut to a circle.
ICONS = (("icon-192.png", 192, 1.0), ("icon-512.png", 512, 1.0), ("icon-maskable-512.png", 512, 0.7))
BACKGROUND = "#0b5a8f"


def main() -> None:
    """Draw each icon in a browser."""
    drawing = (STATIC / "icon.svg").read_text()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.executable(), args=list(browser.ARGUMENTS))
        for name, pixels, share in ICONS:
            page = chromium.new_page(viewport={"width": pixels, "height": pixels})
            background = BACKGROUND if share < 1 else "transparent"
            page.set_content(
                f"<style>html{{background:{background}}} body{{margin:0;display:grid;place-items:center;height:100vh}}"
                f" svg{{width:{share:.0%}}}</style>{drawing}"
            )
            page.screenshot(path=STATIC / name, omit_background=True)
        chromium.close()


if __name__ == "__main__":
    main()
