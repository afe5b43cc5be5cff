"""MPI: the backend, its calls, and facts about the library. Importing this package does not load MPI."""
