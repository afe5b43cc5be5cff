"""MPI: the backend, its calls, and what the library says of itself. Importing this package loads no MPI."""
