"""The page's own Python: what turns a result into HTML and a form into a scenario.

`sections` and what it imports run in CPython: in the worker, at build time, in tests. What `main.py` imports runs on
the page's main thread in MicroPython, so it keeps to what both have: MicroPython's dicts keep no order, and what is
shown in an order is a tuple or a list.
"""
