"""One rank of a crew under mpirun: it connects to the test and plays the scenarios it is sent."""

import multiprocessing
import os
import sys
from multiprocessing.connection import Client

from transport_contract import serve

if __name__ == "__main__":
    from mpi4py import MPI

    key = multiprocessing.current_process().authkey = bytes.fromhex(os.environ["TENFOLD_TEST_KEY"])
    with Client(sys.argv[1], authkey=key) as connection:
        connection.send((MPI.COMM_WORLD.Get_rank(), os.getpid()))
        serve(connection)
