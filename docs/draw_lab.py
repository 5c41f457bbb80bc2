"""Draws docs/lab.png, the picture of the lab: python docs/draw_lab.py runs/lab/report.html, where Chromium is."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).with_name("lab.png")
SIZE = (1080, 1500)
COLORS = 128
"""Enough for curves and text, and a third of the bytes."""
OPTIONS = "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking --no-first-run"


def browser() -> str:
    """Chromium by one of its names."""
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return next(found, None) or sys.exit("no Chromium here; on Debian: apt-get install chromium")


def shoot(page: Path, picture: Path) -> None:
    """The top of a page, as a browser shows it."""
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        command = [browser(), *OPTIONS.split(), f"--user-data-dir={profile}", size, f"--screenshot={picture}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), PICTURE)
    Image.open(PICTURE).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes\n")
