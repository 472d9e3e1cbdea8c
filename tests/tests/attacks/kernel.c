/* Stands between a program and what the kernel says of date and disk, so that a test decides both:
 * preloaded into agent and host, which know nothing of it. The test writes the state into a file that
 * is mapped here, so that a change holds from the next call on.
 *
 * The date is shifted, the monotonic clocks are the machine's. Writes to files below the data
 * directory fail with ENOSPC while the disk is to be full; sockets, pipes and logs are left alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct state {
    int64_t shift;        /* seconds added to the date */
    int32_t synchronised; /* whether the kernel vouches for it */
    int32_t writes_left;  /* writes below the data directory that still succeed; -1: all */
};

static volatile struct state *state;
static const char *data;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SELVEDGE_TEST_KERNEL");
    data = getenv("SELVEDGE_TEST_DATA");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *map = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) state = map;
    close(file);
}

static int64_t shift(void) { return state ? state->shift : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return (int)result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int adjtimex(struct timex *buffer) {
    long result = syscall(SYS_adjtimex, buffer);
    if (!state || result < 0) return (int)result;
    if (state->synchronised) {
        buffer->status &= ~STA_UNSYNC;
        return TIME_OK;
    }
    buffer->status |= STA_UNSYNC;
    return TIME_ERROR;
}

static int is_full(int file) {
    char link[64], path[4096];
    if (!state || !data || state->writes_left < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(data);
    if (strncmp(path, data, prefix) != 0 || path[prefix] != '/') return 0;
    const char *name = strrchr(path, '/');
    if (strcmp(name, "/host.log") == 0) return 0;
    if (state->writes_left > 0) {
        __sync_fetch_and_sub(&state->writes_left, 1);
        return 0;
    }
    errno = ENOSPC;
    return 1;
}

ssize_t write(int file, const void *bytes, size_t count) {
    return is_full(file) ? -1 : syscall(SYS_write, file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    return is_full(file) ? -1 : syscall(SYS_writev, file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    return is_full(file) ? -1 : syscall(SYS_pwrite64, file, bytes, count, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) {
    return is_full(file) ? -1 : syscall(SYS_pwrite64, file, bytes, count, offset);
}
