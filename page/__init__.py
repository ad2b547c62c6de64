"""The page's own Python: what turns a result into HTML and a form into a scenario.

Runs in MicroPython in the page and in CPython at build time and in tests, so it keeps to what both have. MicroPython's
dicts keep no order: what is shown in an order is a tuple or a list.
"""
