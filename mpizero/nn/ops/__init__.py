"""Operators: pairs f / f_backward on stored arrays, in blocks that stay in cache.

`mpizero.nn.functional` has them under one name.
"""
