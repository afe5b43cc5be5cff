#include <mpi.h>
#include <time.h>

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

#define SAMPLE(name, CALL)                                                                                  \
    long long name(void *send, void *receive, int count, int other, int first, long long calls, int handle) { \
        MPI_Comm comm = MPI_Comm_f2c(handle);                                                               \
        long long before;                                                                                   \
        MPI_Barrier(comm);                                                                                  \
        before = now_ns();                                                                                  \
        for (long long left = calls; left; left--) { CALL; }                                                \
        return now_ns() - before;                                                                           \
    }

SAMPLE(all_reduce, MPI_Allreduce(MPI_IN_PLACE, receive, count, MPI_FLOAT, MPI_SUM, comm))
SAMPLE(all_gather, MPI_Allgather(send, count, MPI_FLOAT, receive, count, MPI_FLOAT, comm))
SAMPLE(ping_pong, {
    if (first) MPI_Send(send, count, MPI_FLOAT, other, 0, comm);
    MPI_Recv(receive, count, MPI_FLOAT, other, 0, comm, MPI_STATUS_IGNORE);
    if (!first) MPI_Send(send, count, MPI_FLOAT, other, 0, comm);
})
