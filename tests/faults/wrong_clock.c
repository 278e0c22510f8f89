/* For LD_PRELOAD: a process whose wall clock is WRONG_CLOCK_S seconds off, as seen by everything that asks glibc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off_s(void) {
    const char *given = getenv("WRONG_CLOCK_S");
    return given ? atol(given) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += off_s();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* The kernel's clock is right: a deadline that was reckoned from the wrong one is put right for it. */
int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    int (*real)(sem_t *, const struct timespec *) = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec right = {until->tv_sec - off_s(), until->tv_nsec};
    return real(sem, &right);
}
