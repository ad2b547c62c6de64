"""Cut the page's font to the letters and signs that figures write.

usage: python -m tools.fonts SITE_PACKAGES

Figures only measure with it, since the browser draws their text; a sign that it lacks is measured as the empty box. The
ordinary start has the whole font, and the same figures.
"""

import argparse
from pathlib import Path

from fontTools.subset import Options, Subsetter, load_font, save_font  # type: ignore[import-untyped]

from tools.repack import FONTS, FONTS_FOLDER

# Latin with its accents, Greek, Cyrillic; then what formulas and units use: punctuation, raised and lowered digits,
# currencies, letter-like signs, arrows, operators, shapes.
KEPT = (
    *range(0x20, 0x180),
    *range(0x370, 0x460),
    *range(0x2000, 0x2070),
    *range(0x2070, 0x20C0),
    *range(0x2100, 0x2200),
    *range(0x2200, 0x2300),
    *range(0x25A0, 0x2600),
)


def main() -> None:
    """Replace the fonts by their parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site_packages", type=Path, help="where the repacked packages lie")
    for name in FONTS:
        path = parser.parse_args().site_packages / FONTS_FOLDER / name
        # Besides widths matplotlib reads kerning, of the old kind. The time of the change would differ at every build.
        options = Options(layout_features=[], legacy_kern=True, notdef_outline=True, recalc_timestamp=False)
        before = path.stat().st_size
        with load_font(path, options) as font:
            subsetter = Subsetter(options)
            subsetter.populate(unicodes=KEPT)
            subsetter.subset(font)
            save_font(font, path, options)
        print(f"{name}: {before} -> {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
