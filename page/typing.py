"""Stands for CPython's ``typing`` in the page, since MicroPython has none: names for annotations alone."""

Any = object
