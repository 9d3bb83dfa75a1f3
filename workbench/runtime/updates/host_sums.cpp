// Sums of gradients that lie in host memory, and their squares.
//
// A tied head brings the gradient of the embedding's matrix a second time, and both are added before
// their norm is known: nothing of a step can be updated meanwhile, so this is done at the speed of
// the host's memory. Plain threads, as in host_adam.cpp and for its reason: a pool of OpenMP threads
// in each of several processes waits for threads that have no core, for longer than the work takes.
//
// The squares of each block are added up by themselves, in lanes that a vector holds, and the blocks
// in their order: the result does not depend on the number of threads.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using BFloat16 = std::uint16_t;
constexpr std::int64_t block = 1 << 16;
constexpr std::int64_t lanes = 16;

inline float widen(float x) { return x; }

inline float widen(BFloat16 x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline void narrow(float x, float& to) { to = x; }

// To the nearest, ties to even, as torch rounds; what is no number stays none.
inline void narrow(float x, BFloat16& to) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to = static_cast<BFloat16>(std::isnan(x) ? 0x7fc0u : rounded);
}

template <class Number>
double sum_block(Number* __restrict__ own, const Number* __restrict__ added, std::int64_t count) {
    double squares[lanes] = {};
    const auto some = [&](std::int64_t from, std::int64_t many) {
        for (std::int64_t i = 0; i < many; ++i) {
            if (added != nullptr) narrow(widen(own[from + i]) + widen(added[from + i]), own[from + i]);
            const double value = widen(own[from + i]);
            squares[i] += value * value;
        }
    };
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) some(i, lanes);
    some(i, count - i);
    double total = 0;
    for (const double square : squares) total += square;
    return total;
}

template <class Number>
double sum_all(Number* own, const Number* added, std::int64_t numel, std::int64_t threads) {
    const std::int64_t blocks = (numel + block - 1) / block;
    std::vector<double> squares(static_cast<std::size_t>(blocks));
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
        for (std::int64_t at = next++; at < blocks; at = next++) {
            const std::int64_t begin = at * block, count = std::min(block, numel - begin);
            squares[static_cast<std::size_t>(at)] =
                sum_block(own + begin, added == nullptr ? nullptr : added + begin, count);
        }
    };
    std::vector<std::thread> started;
    try {
        for (std::int64_t i = 1; i < std::min(threads, blocks); ++i)
            started.emplace_back(work);
    } catch (const std::system_error&) { // those there are do the work
    }
    work();
    for (auto& thread : started) thread.join();
    double total = 0;
    for (const double square : squares) total += square;
    return total;
}

} // namespace

// `added`, where it is not null, is added to `own`; the result is the sum of what then are the
// squares of `own`.
extern "C" double workbench_sum(void* own, const void* added, std::int64_t numel, std::int32_t bf16,
                                std::int64_t threads) {
    if (bf16)
        return sum_all(static_cast<BFloat16*>(own), static_cast<const BFloat16*>(added), numel,
                       threads);
    return sum_all(static_cast<float*>(own), static_cast<const float*>(added), numel, threads);
}
