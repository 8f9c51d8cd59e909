"""`python -m mpizero`: which commands there are."""

COMMANDS = """mpizero: ZeRO and FSDP on real MPI ranks. Each command has --help.

  mpirun -n 4 python -m mpizero.train --stage 2       train, and see what each rank stored and sent
  mpirun -n 4 python -m mpizero.verify                prove that all stages compute the same, and the bytes
  mpirun -n 4 python -m mpizero.bench collectives     our rings beside MPI's collectives
  python -m mpizero.plan fit --help                   does a model fit, and what will it send?
  python -m mpizero.report DIR                        figures and a page of a training log"""

if __name__ == "__main__":
    print(COMMANDS)
