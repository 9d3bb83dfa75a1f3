// Counts that processes share: loaded, stored, and waited for without the interpreter.
//
// A store is a release and a load an acquire: who sees a count sees what its writer did before.
// Several lanes of a rank wait on the board at any time. A wait in Python takes the interpreter lock
// at every look, from the lane that launches kernels: its launches then take twice as long.

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <sched.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace {

std::int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

} // namespace

// Until `count` is above `seen` (1), or `failed` differs from `nobody` or `patience_ns` are over
// (0): then the caller has a look. What comes soon is looked for all the time, since a nap takes
// three times as long as it should on a virtual machine, and two ranks that wait for each other at
// every message nap at every message. Then it sleeps in between, for an eighth of the time that it has
// waited already: whoever waits long need not know to the microsecond, and others want the core.
extern "C" std::int32_t workbench_wait(const std::int64_t* count, std::int64_t seen,
                                       const std::int64_t* failed, std::int64_t nobody,
                                       std::int64_t patience_ns) {
    constexpr std::int64_t soon = 60'000, least = 20'000, most = 250'000;
    const auto there = [&] { return __atomic_load_n(count, __ATOMIC_ACQUIRE) > seen; };
    if (there()) return 1;
#if defined(__linux__)
    prctl(PR_SET_TIMERSLACK, 1000UL); // the usual slack is longer than most naps
#endif
    const std::int64_t begin = now_ns();
    while (now_ns() - begin < soon) {
        sched_yield();
        if (there()) return 1;
    }
    for (std::int64_t waited = 0; waited < patience_ns; waited = now_ns() - begin) {
        if (__atomic_load_n(failed, __ATOMIC_ACQUIRE) != nobody) return 0;
        const timespec nap{0, static_cast<long>(std::clamp(waited / 8, least, most))};
        nanosleep(&nap, nullptr);
        if (there()) return 1;
    }
    return 0;
}

extern "C" std::int64_t workbench_load(const std::int64_t* count) {
    return __atomic_load_n(count, __ATOMIC_ACQUIRE);
}

extern "C" void workbench_store(std::int64_t* count, std::int64_t value) {
    __atomic_store_n(count, value, __ATOMIC_RELEASE);
}
