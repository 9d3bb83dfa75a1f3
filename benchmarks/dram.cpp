// What host memory gives at best: one pass over large arrays in parts, one part per thread.

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// Integers, so that the compiler may add in any order; returned, so that it may not leave it out.
std::uint64_t read(const std::uint64_t* a, std::int64_t count) {
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += a[i];
    return sum;
}

void update(std::uint64_t* a, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) a[i] += 0x9e3779b97f4a7c15u;
}

} // namespace

// kind: 0 reads a, 1 fills a, 2 copies b to a, 3 updates a in place. Fills and copies of this size
// go around the caches, so they do not read what they overwrite.
extern "C" std::uint64_t memory_pass(
    std::int64_t kind, std::uint64_t* a, const std::uint64_t* b, std::int64_t count,
    std::int64_t threads) {
    std::vector<std::uint64_t> sums(threads);
    const auto part = [&](std::int64_t t) {
        const std::int64_t begin = count / threads * t;
        const std::int64_t size = t + 1 < threads ? count / threads : count - begin;
        if (kind == 0) sums[t] = read(a + begin, size);
        if (kind == 1) std::memset(a + begin, 1, size * 8);
        if (kind == 2) std::memcpy(a + begin, b + begin, size * 8);
        if (kind == 3) update(a + begin, size);
    };
    std::vector<std::thread> others;
    for (std::int64_t t = 1; t < threads; ++t) others.emplace_back(part, t);
    part(0);
    for (auto& thread : others) thread.join();
    return read(sums.data(), threads);
}
