/* The switch of the bed: Ethernet between virtual hosts, with a known rate and delay on every cable and every path.
 *
 *     switch CONFIGURATION
 *
 * The configuration is read at the start, and again on SIGHUP, after which "applied GENERATION" is printed:
 *
 *     host NAME NAMESPACE                                  a host and the file of its network namespace; the first read counts
 *     cable NAME UP_MBIT DOWN_MBIT DELAY_NS LOST           how its cable is: 0 Mbit/s is unlimited, LOST is the share of
 *                                                          its frames that are lost, each way (1: it is cut)
 *     path SOURCE DESTINATION MBIT DELAY_NS                what the way from one host to another has on top, in this direction
 *     trunk NAME MBIT                                      this host is behind the trunk, which carries so much each way
 *     generation NUMBER                                    comes back in "applied"
 *
 * Each host gets a TAP device eth0. A frame leaves its host at the rate up, waits for the delays of both cables and of the
 * path, and arrives at the rate down; between idle cables of equal rate it is serialised once (cut-through). Frames between
 * a host behind the trunk and one before it share the trunk. Nothing is dropped but by a cable that loses it: a frame is not taken from the device of a host whose cable is busy. So that TCP sees what waits,
 * the host itself sends no faster than its cable (hosts.py).
 * Host number i (from 1) owns the address 02:00:00:00:00:i, so that finding the receiver is reading a byte.
 * The switch ends with its standard input, so that it cannot outlive whoever started it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MOST_HOSTS 64
#define LARGEST_FRAME 65600
#define FRAMES_AHEAD 2        /* how many frames a host may give to its busy cable */
#define FRAMES_IN_A_ROW 16    /* how many frames one host may hand over before the others have their turn */
#define GAP 24                /* what a frame takes on a cable beyond its bytes: preamble, checksum, gap */

struct frame {
    struct frame *next;
    int64_t due; /* ns of the monotonic clock */
    int length;
    unsigned char bytes[];
};

struct cable {
    double up, down; /* Mbit/s */
    int64_t delay;   /* ns from host to switch */
    double lost;     /* share of the frames */
};

static struct host {
    char name[64];
    int tap;
    struct cable cable;
    int behind; /* the trunk */
    int64_t up_free, down_free; /* when the last frame given to the cable will have passed */
    struct frame *first, *last; /* on their way to this host, by arrival */
} hosts[MOST_HOSTS];

static struct path {
    double rate;
    int64_t delay, free;
} paths[MOST_HOSTS][MOST_HOSTS], trunks[2]; /* of trunks, the way out of each side */

static int count;
static volatile sig_atomic_t reread;

static void on_hangup(int number) { (void)number; reread = 1; }

static void fail(const char *what, const char *which) {
    fprintf(stderr, "switch: %s %s: %s\n", what, which, errno ? strerror(errno) : "not understood");
    exit(2);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t later(int64_t one, int64_t other) { return one > other ? one : other; }

/* How long a frame takes to pass at a rate. */
static int64_t passing(int length, double mbit) { return mbit > 0 ? (int64_t)((length + GAP) * 8000.0 / mbit) : 0; }

static int open_tap(const char *namespace) {
    struct ifreq request = {.ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI};
    int space = open(namespace, O_RDONLY | O_CLOEXEC), tap;
    if (space < 0 || setns(space, CLONE_NEWNET)) fail("cannot enter", namespace);
    close(space);
    tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request)) fail("cannot make eth0 in", namespace);
    return tap;
}

static int numbered(const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(hosts[i].name, name)) return i;
    errno = ENODEV;
    fail("no host", name);
    return -1;
}

static void configure(const char *file, int first_time) {
    char line[512], one[256], other[256], generation[64] = "0";
    double up, down, lost;
    long long delay;
    FILE *configuration = fopen(file, "r");
    if (!configuration) fail("cannot read", file);
    for (int i = 0; i < count; i++) {
        hosts[i].behind = 0;
        for (int j = 0; j < count; j++) paths[i][j].rate = paths[i][j].delay = 0;
    }
    while (fgets(line, sizeof line, configuration)) {
        if (sscanf(line, "host %63s %255s", one, other) == 2) {
            if (!first_time) continue;
            if (count == MOST_HOSTS) fail("too many hosts at", one);
            strcpy(hosts[count].name, one);
            hosts[count++].tap = open_tap(other);
        } else if (sscanf(line, "cable %63s %lf %lf %lld %lf", one, &up, &down, &delay, &lost) == 5) {
            hosts[numbered(one)].cable = (struct cable){up, down, delay, lost};
        } else if (sscanf(line, "trunk %63s %lf", one, &up) == 2) {
            hosts[numbered(one)].behind = 1;
            trunks[0].rate = trunks[1].rate = up;
        } else if (sscanf(line, "path %63s %63s %lf %lld", one, other, &up, &delay) == 4) {
            struct path *path = &paths[numbered(one)][numbered(other)];
            path->rate = up;
            path->delay = delay;
        } else if (sscanf(line, "generation %63s", generation) != 1) {
            errno = 0;
            fail("line", line);
        }
    }
    fclose(configuration);
    printf("applied %s\n", generation);
    fflush(stdout);
}

/* When the last bit of a frame is through one more stage (a path, a cable) that takes `alone` for it and that the frame
 * before left at `free`; its last bit comes in at `here`, its first one `before` earlier. */
static int64_t through(int64_t *free, int64_t here, int64_t *before, int64_t alone) {
    int64_t first_bit = here - (*before < alone ? *before : alone);
    *before = later(*before, alone);
    return *free = later(*free, first_bit) + alone;
}

/* Puts a frame that left its host where it waits to arrive. */
static void forward(int source, int destination, const unsigned char *bytes, int length) {
    struct host *from = &hosts[source], *to = &hosts[destination];
    struct path *path = &paths[source][destination];
    if (drand48() < from->cable.lost || drand48() < to->cable.lost) return;
    int64_t before = passing(length, from->cable.up);
    int64_t here = from->up_free + from->cable.delay + path->delay + to->cable.delay;
    here = through(&path->free, here, &before, passing(length, path->rate));
    if (from->behind != to->behind) {
        struct path *trunk = &trunks[from->behind];
        here = through(&trunk->free, here, &before, passing(length, trunk->rate));
    }
    here = through(&to->down_free, here, &before, passing(length, to->cable.down));
    struct frame *frame = malloc(sizeof *frame + length);
    if (!frame) fail("no memory for a frame to", to->name);
    *frame = (struct frame){.next = NULL, .due = here, .length = length};
    memcpy(frame->bytes, bytes, length);
    if (to->last)
        to->last->next = frame;
    else
        to->first = frame;
    to->last = frame;
}

static void take_from(int source) {
    static unsigned char bytes[LARGEST_FRAME];
    struct host *from = &hosts[source];
    for (int taken = 0; taken < FRAMES_IN_A_ROW; taken++) {
        int length = read(from->tap, bytes, sizeof bytes);
        if (length < 14) return;
        int64_t moment = now(), alone = passing(length, from->cable.up);
        from->up_free = later(from->up_free, moment) + alone;
        int destination = bytes[5] - 1, group = bytes[0] & 1; /* a group address goes to everybody */
        for (int i = 0; i < count; i++)
            if (i != source && (group || i == destination)) forward(source, i, bytes, length);
        if (from->up_free - moment > FRAMES_AHEAD * alone) return;
    }
}

static void deliver_to(struct host *to, int64_t moment) {
    while (to->first && to->first->due <= moment) {
        struct frame *frame = to->first;
        if (write(to->tap, frame->bytes, frame->length) < 0 && errno == EAGAIN) return;
        to->first = frame->next;
        if (!to->first) to->last = NULL;
        free(frame);
    }
}

int main(int arguments, char **argument) {
    struct pollfd ready[MOST_HOSTS + 1];
    if (arguments != 2) fail("usage: switch", "CONFIGURATION");
    prctl(PR_SET_TIMERSLACK, 1UL);
    /* What the network does must not depend on who computes: before all others, ranks too, or at least before most. */
    if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 2})) setpriority(PRIO_PROCESS, 0, -15);
    signal(SIGHUP, on_hangup);
    sigset_t hangup, none;
    sigemptyset(&none);
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    sigprocmask(SIG_BLOCK, &hangup, NULL); /* it comes through while waiting, and at no other time */
    configure(argument[1], 1);
    for (;;) {
        if (reread) {
            reread = 0;
            configure(argument[1], 0);
        }
        int64_t moment = now(), next = moment + 1000000000;
        for (int i = 0; i < count; i++) {
            struct host *host = &hosts[i];
            deliver_to(host, moment);
            if (host->first && host->first->due < next) next = host->first->due;
            int64_t busy = host->up_free - FRAMES_AHEAD * passing(9000, host->cable.up);
            ready[i] = (struct pollfd){.fd = host->tap, .events = busy > moment ? 0 : POLLIN};
            if (busy > moment && busy < next) next = busy;
        }
        ready[count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        int64_t wait = later(next - now(), 0);
        struct timespec patience = {wait / 1000000000, wait % 1000000000};
        if (ppoll(ready, count + 1, &patience, &none) <= 0) continue;
        if (ready[count].revents) return 0;
        for (int i = 0; i < count; i++)
            if (ready[i].revents & POLLIN) take_from(i);
    }
}
