"""What a machine is, how fast it is, what is wrong with it and how to cure that: `mpirun -n 4 python -m mpizero.doctor`.

Facts are read (`host`, `rank`, `launched`) and rates are measured (`rings`, `speed`) on every rank; pure functions judge
them (`judge`, `judge_links`), fit them (`fit`, `machine`) and show them (`show`) on rank 0.
"""
