#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <string.h>
#include <time.h>

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void pin(const int *cores, int threads) {
    #pragma omp parallel num_threads(threads)
    {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(cores[omp_get_thread_num()], &own);
        sched_setaffinity(0, sizeof own, &own);
    }
}

#define SAMPLE(name, ...)                                                                                    \
    long long name(double *restrict a, const double *restrict b, const double *restrict c, long n, int threads, \
                   long calls) {                                                                             \
        const double scalar = 3.0;                                                                           \
        long long before = 0;                                                                                \
        for (long call = -1; call < calls; call++) { /* one to wake the threads */                           \
            if (call == 0) before = now_ns();                                                                \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
        (void)scalar;                                                                                        \
        return now_ns() - before;                                                                            \
    }

#define LOOP(BODY)                                                \
    _Pragma("omp parallel for num_threads(threads)") for (long i = 0; i < n; i++) { BODY; }

SAMPLE(stream_copy, LOOP(a[i] = b[i]))
SAMPLE(stream_scale, LOOP(a[i] = scalar * b[i]))
SAMPLE(stream_add, LOOP(a[i] = b[i] + c[i]))
SAMPLE(stream_triad, LOOP(a[i] = b[i] + scalar * c[i]))
SAMPLE(memory_copy, {
    _Pragma("omp parallel num_threads(threads)")
    {
        long each = n / threads, first = each * omp_get_thread_num();
        memcpy(a + first, b + first, sizeof(double) * (omp_get_thread_num() + 1 == threads ? n - first : each));
    }
})
