"""Questions to the planner on the command line: `python -m mpizero.plan`. A module for each sub-command.

Each has HELP, EXAMPLE, `add_flags(parser)`, `answer(options) -> dict` (what --json writes) and `show(answer) -> str`,
at most `WIDTH` wide. Needs no mpirun, no MPI and no NumPy.
"""
