"""Closed forms and published numbers of the papers, and what other programs estimate. They walk no list. Pure."""
