#!/bin/sh
# Trains examples/torch_fashion_mnist.py under mpirun; arguments go to the program.
#
#   examples/mpirun_torch.sh --epochs 3                        two ranks on this host
#   NP=8 HOSTS=a:4,b:4 examples/mpirun_torch.sh                four on each of two hosts
#   MPIRUN=/opt/openmpi/bin/mpirun examples/mpirun_torch.sh    another mpirun than the first on PATH
#
# `ringrun --transport mpi` does the same in one line, and finds the mpirun that belongs to mpi4py's library.
set -eu
program=$(dirname "$0")/torch_fashion_mnist.py
mpirun=${MPIRUN:-mpirun}
np=${NP:-2}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

case $("$mpirun" --version 2>&1) in
*"Open MPI"* | *OpenRTE*)
    # Over ssh nothing is inherited, so variables are named.
    set -- ${HOSTS:+-H "$HOSTS"} -x PATH -x OMP_NUM_THREADS ${PYTHONPATH:+-x PYTHONPATH} \
        ${RINGREDUCE_DATA:+-x RINGREDUCE_DATA} "${PYTHON:-python3}" "$program" "$@"
    ;;
*)
    # MPICH's Hydra passes all variables on.
    set -- ${HOSTS:+-hosts "$HOSTS"} -bind-to core "${PYTHON:-python3}" "$program" "$@"
    ;;
esac
exec "$mpirun" -np "$np" "$@"
