"""A training log as pictures, a page and a trace: `python -m mpizero.report DIR`.

Reads files only; needs the extra `plot` (matplotlib).
"""
