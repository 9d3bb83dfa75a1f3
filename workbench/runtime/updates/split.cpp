// Masters that lie in two halves (split.py), rounded to bf16 as torch rounds them.
//
// A model that leaves is written at the speed of a disk, and one thread that joins halves and rounds
// them is slower than a good one. Here 4 bytes a parameter are read and 2 written, by plain threads
// over blocks, as in host_adam.cpp and for its reason.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t block = 1 << 18;
constexpr std::uint32_t infinity = 0x7f800000u;

// To the nearest, ties to even; what is no number stays none.
void round_block(const std::uint16_t* __restrict__ weights, const std::int16_t* __restrict__ rest,
                 std::uint16_t* __restrict__ to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = (static_cast<std::uint32_t>(weights[i]) << 16) +
                                   static_cast<std::uint32_t>(static_cast<std::int32_t>(rest[i]));
        const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const bool none = (bits & 0x7fffffffu) > infinity;
        to[i] = static_cast<std::uint16_t>(none ? 0x7fc0u : rounded);
    }
}

} // namespace

extern "C" void workbench_round(const void* weights, const void* rest, void* to, std::int64_t numel,
                                std::int64_t threads) {
    const std::int64_t blocks = (numel + block - 1) / block;
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
        for (std::int64_t at = next++; at < blocks; at = next++) {
            const std::int64_t begin = at * block;
            round_block(static_cast<const std::uint16_t*>(weights) + begin,
                        static_cast<const std::int16_t*>(rest) + begin,
                        static_cast<std::uint16_t*>(to) + begin, std::min(block, numel - begin));
        }
    };
    std::vector<std::thread> started;
    try {
        for (std::int64_t i = 1; i < std::min(threads, blocks); ++i) started.emplace_back(work);
    } catch (const std::system_error&) { // those there are do the work
    }
    work();
    for (auto& thread : started) thread.join();
}
