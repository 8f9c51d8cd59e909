"""What is wrong with a machine, the cure, and how fast it is: `mpirun -n 4 python -m mpizero.doctor`.

Facts are read (`host`, `rank`, `launched`) and rates are measured (`rings`, `speed`) on every rank; on rank 0 pure
functions judge them (`judge`, `judge_links`), fit them (`fit`, `machine`) and show them (`show`).
"""
