"""Small models of a small text for the tests of experiments on language."""

import sysconfig
from pathlib import Path

from rebracket.lab.base import text

SMALL = {"VOCABULARY": 300, "CONTEXT": 64, "BATCH": 512, "HELD_OUT": 4096}


def use_little_text(monkeypatch, tmp_path_factory):
    """Half a megabyte of text in place of the whole, and short contexts."""
    monkeypatch.setattr(text, "TEXT", str(Path(sysconfig.get_path("stdlib"), "asyncio")))
    for name, value in SMALL.items():
        monkeypatch.setattr(text, name, value)
    monkeypatch.setenv("REBRACKET_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
