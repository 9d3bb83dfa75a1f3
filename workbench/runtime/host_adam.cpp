// One AdamW update over flat slabs, in a single pass through memory.
//
// Per element the host reads the gradient (2 or 4 bytes), the fp32 master weight and both fp32
// moments, and writes those three back together with the working copy the device will load (2 or 4
// bytes): 28 bytes per parameter with bf16 gradients and copies. Widening the gradient, updating
// and narrowing the weight in three separate passes moves 40, and memory bandwidth is what bounds
// this loop.
//
// Arithmetic. Every operation is the one torch's AdamW performs, in the same order and precision:
// it adds to each moment with a fused multiply-add and does everything else in separately rounded
// steps. The build therefore forbids the compiler to contract on its own (-ffp-contract=off), and
// the two contractions that are wanted are written out below. So moments agree bit for bit with
// torch's for-loop, foreach and fused forms, and weights with the fused one; the other two take
// square roots from a vector library that does not always round correctly.
//
// Threads. Plain std::thread over blocks of the slab: torch already brings an OpenMP runtime into
// the process, and a second one (or oversubscription of the first, since several layers are
// updated at once) costs more than starting a few threads for a call that takes milliseconds.
// There is no shared state at all, so calls on different slabs may run at the same time; the
// caller (ctypes) holds no interpreter lock meanwhile.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

// Mirrored field by field by the ctypes structure in host_adam.py.
struct Update {
    float* param;
    float* exp_avg;
    float* exp_avg_sq;
    const void* grad;
    void* working;            // may be null
    std::int64_t numel;
    std::int64_t decay_split; // elements before this one decay
    std::int64_t threads;
    std::int32_t grad_bf16;
    std::int32_t working_bf16;
    // Scalars, computed in double and rounded once to fp32, as torch does.
    float grad_scale;       // gradients are multiplied by this
    float decay;            // 1 - lr * weight_decay
    float lerp_weight;      // 1 - beta1
    float beta2;
    float one_minus_beta2;
    float sqrt_correction2; // sqrt(1 - beta2^step)
    float eps;
    float neg_step_size;    // -lr / (1 - beta1^step)
};

namespace {

struct None {};
using BFloat16 = std::uint16_t;

inline float widen(float x) { return x; }

inline float widen(BFloat16 x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline void store(float* out, float x) { *out = x; }

// Round to nearest, ties to even; a NaN stays a NaN (rounding its payload could carry it into
// infinity).
inline void store(BFloat16* out, float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    *out = static_cast<BFloat16>(nan ? 0x7fc0u : rounded);
}

// Product and sum rounded once, where the machine can. Without hardware support std::fma is a
// library call per element, and two roundings (one unit in the last place) are the better bargain.
inline float multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

template <class Grad, class Work>
void update_range(const Update& u, std::int64_t begin, std::int64_t end, float decay) {
    // Locals, because a store through a float* could change u's scalars and stop the loop from
    // vectorising.
    float* __restrict__ param = u.param;
    float* __restrict__ exp_avg = u.exp_avg;
    float* __restrict__ exp_avg_sq = u.exp_avg_sq;
    const Grad* __restrict__ grad = static_cast<const Grad*>(u.grad);
    Work* __restrict__ working = static_cast<Work*>(u.working);
    const float grad_scale = u.grad_scale, beta2 = u.beta2, one_minus_beta2 = u.one_minus_beta2;
    const float sqrt_correction2 = u.sqrt_correction2, eps = u.eps, neg_step_size = u.neg_step_size;
    const bool from_start = u.lerp_weight < 0.5f; // torch interpolates from the nearer end
    const float lerp_weight = from_start ? u.lerp_weight : u.lerp_weight - 1.0f;
    for (std::int64_t i = begin; i < end; ++i) {
        const float g = widen(grad[i]) * grad_scale;
        const float m = multiply_add(lerp_weight, g - exp_avg[i], from_start ? exp_avg[i] : g);
        const float v = multiply_add(one_minus_beta2 * g, g, exp_avg_sq[i] * beta2);
        const float denominator = std::sqrt(v) / sqrt_correction2 + eps;
        const float p = param[i] * decay + (neg_step_size * m) / denominator;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = p;
        if constexpr (!std::is_same_v<Work, None>) store(working + i, p);
    }
}

template <class Grad, class Work>
void update_all(const Update& u) {
    // Threads take the next block when they are done with one, so one that starts late or shares its
    // core does less, instead of all others waiting for it. A block is some tens of microseconds of
    // work (starting a thread costs about as much), and a whole number of cache lines even of a bf16
    // copy, so that no two threads write one line.
    constexpr std::int64_t block = 1 << 16;
    const std::int64_t blocks = (u.numel + block - 1) / block;
    std::atomic<std::int64_t> next{0};
    const auto work = [&u, &next, blocks] {
        for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
            const std::int64_t begin = i * block, end = std::min(begin + block, u.numel);
            const std::int64_t split = std::clamp(u.decay_split, begin, end);
            update_range<Grad, Work>(u, begin, split, u.decay);
            update_range<Grad, Work>(u, split, end, 1.0f);
        }
    };
    std::vector<std::thread> others;
    try {
        for (std::int64_t t = 1; t < std::min(u.threads, blocks); ++t) others.emplace_back(work);
    } catch (const std::system_error&) {
        // The system gives us fewer threads than asked for; those there are do the work.
    }
    work();
    for (auto& thread : others) thread.join();
}

template <class Grad>
void dispatch_working(const Update& u) {
    if (u.working == nullptr) return update_all<Grad, None>(u);
    return u.working_bf16 ? update_all<Grad, BFloat16>(u) : update_all<Grad, float>(u);
}

} // namespace

extern "C" void workbench_adamw(const Update* u) {
    u->grad_bf16 ? dispatch_working<BFloat16>(*u) : dispatch_working<float>(*u);
}
