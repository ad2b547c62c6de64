"""Models as torch modules are written, on tensors without values (see ``calc.replay``).

Each module here covers a family of implementations; `registry.py` says which configuration goes to which.
"""
