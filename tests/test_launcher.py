"""What launchers tell through the environment: who started this process, which rank it is, and for which MPI."""

from __future__ import annotations

import pytest

from mpizero.launcher import Launch, cure, is_foreign, launch, rank_in_job, rank_on_machine

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "PMIX_RANK": "3", "PMIX_SERVER_URI41": "tcp"}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}
SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
SRUN_PMI2 = {**SRUN, "PMI_SIZE": "4", "PMI_RANK": "3"}
SRUN_PMIX = {**SRUN, "PMIX_RANK": "3", "PMIX_SERVER_URI2": "tcp"}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
SALLOC_SHELL = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_ID": str(0xFFFFFFFA)}
# srun starts one helper of mpirun a host; the ranks inherit what it was told
MPIRUN_BY_SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize("environ, found, rank, local", [
    ({}, None, None, None),
    (OPEN_MPI, Launch("Open MPI's mpirun", 4, "PMIx"), 3, 1),
    (HYDRA, Launch("MPICH's mpirun", 4, "PMI"), 3, 1),
    (SRUN, Launch("srun", 4, ""), 3, 1),
    (SRUN_PMI2, Launch("srun --mpi=pmi2", 4, "PMI"), 3, 1),
    (SRUN_PMIX, Launch("srun --mpi=pmix", 4, "PMIx"), 3, 1),
    ({"PMIX_RANK": "3", "PMIX_SERVER_URI2": "tcp"}, Launch("mpirun", None, "PMIx"), 3, 3),
    ({"PMIX_RANK": "3"}, Launch("mpirun", None, ""), 3, 3),
    ({"PMI_RANK": "3", "PMI_SIZE": "4"}, Launch("mpirun", 4, "PMI"), 3, 3),
    ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, Launch("srun", 2, ""), 1, 1),
    (BATCH_SCRIPT, None, None, None),
    (SALLOC_SHELL, None, None, None),
    ({**BATCH_SCRIPT, **OPEN_MPI}, Launch("Open MPI's mpirun", 4, "PMIx"), 3, 1),
    ({**MPIRUN_BY_SRUN, **OPEN_MPI}, Launch("Open MPI's mpirun", 4, "PMIx"), 3, 1),
    ({**MPIRUN_BY_SRUN, **HYDRA}, Launch("MPICH's mpirun", 4, "PMI"), 3, 1),
])
def test_what_is_told(environ, found, rank, local):
    assert (launch(environ), rank_in_job(environ), rank_on_machine(environ)) == (found, rank, local)


@pytest.mark.parametrize("environ, open_mpi, mpich", [
    (OPEN_MPI, False, True), (HYDRA, True, False), (SRUN, True, True), (SRUN_PMI2, False, False),
    (SRUN_PMIX, False, True), ({"PMIX_RANK": "0"}, True, True),
    ({**HYDRA, "PMI_SIZE": "1"}, False, False), ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, False, False),
])
def test_for_which_library(environ, open_mpi, mpich):
    found = launch(environ)
    assert is_foreign(found, "Open MPI v5.0.11", "") is open_mpi
    assert is_foreign(found, "MPICH 5.0.2", "") is mpich
    assert not is_foreign(found, "MPICH 5.0.2", "/usr/lib/libpmix.so.2")  # can speak with all
    assert not is_foreign(found, "Intel(R) MPI", "")  # MPI_Init decides


def test_an_mpirun_that_suits_the_library(tmp_path):
    (tmp_path / "bin").mkdir()
    library = f"7f00-7f01 r-xp 00000000 fe:00 123  {tmp_path}/lib/x86_64-linux-gnu/libmpich.so.12.2.2\n"
    hydra, srun = launch(HYDRA), launch(SRUN)
    assert cure(hydra, "Open MPI v4.1.4", library) == "that library's mpirun"
    for name in ("mpirun", "mpirun.openmpi", "mpirun.mpich"):
        (tmp_path / "bin" / name).touch(mode=0o755)
        suits = name if name != "mpirun.mpich" else "mpirun.openmpi"
        assert cure(hydra, "Open MPI v4.1.4", library) == f"{tmp_path}/bin/{suits}"
    inside = f"inside the allocation with {tmp_path}/bin/mpirun"
    assert cure(srun, "MPICH 4.0.2", library) == f"srun --mpi=pmi2, or {inside}.mpich"
    assert cure(srun, "Open MPI v4.1.4", library) == f"srun --mpi=pmix, or {inside}.openmpi"
