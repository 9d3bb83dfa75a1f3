// One AdamW update over flat slabs, in a single pass through memory.
//
// Per element the host reads the gradient (2 or 4 bytes), the master weight (4) and both fp32
// moments (8), and writes the last three back: 26 bytes per parameter with bf16 gradients. Memory
// bandwidth is what bounds this loop, so nothing is moved twice: the master weight of a bf16 model
// is stored as two halves of 2 bytes, of which the upper one is the working weight that transfers
// read; and an update that was applied with the wrong gradient scale is taken back and applied
// again in the same pass.
//
// Halves. The upper half is the fp32 value rounded to bf16, ties away from zero; the lower one is
// what is missing as a signed 16-bit integer. So the sum of both, as integers, is exactly the
// master. (Ties to even cannot be told apart from 16 bits of remainder: -2^15 and 2^15 both occur.)
//
// Parts. An update may be made in two passes: weights first, which later passes over the model wait
// for, and the moments when the host has time. Each reads 14 or 10 bytes of a bf16 model and writes
// 4 or 8. Both compute the new moments, to the same bits, and the second one needs no weights.
//
// Arithmetic. Every operation of an update is the one torch's AdamW performs, in the same order and
// precision: it adds to each moment with a fused multiply-add and rounds each other step by itself.
// The build therefore forbids the compiler to contract on its own (-ffp-contract=off), and the two
// contractions that are wanted are written out below. So moments agree bit for bit with torch's
// for-loop, foreach and fused forms, and weights with the fused one; the other two take square
// roots from a vector library that does not always round correctly. The inverse undoes these
// operations one by one; adam_step.py states its error.
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
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Values that were compared (results/LOG.md). Elements from the one computed to the one prefetched (0
// for none), the caches to prefetch into (3 for all, 0 for those nearest), and the least and the
// most elements that a thread takes at a time.
#ifndef WORKBENCH_PREFETCH
#define WORKBENCH_PREFETCH 512
#endif
#ifndef WORKBENCH_LOCALITY
#define WORKBENCH_LOCALITY 3
#endif
#ifndef WORKBENCH_LEAST_BLOCK
#define WORKBENCH_LEAST_BLOCK (1 << 14)
#endif
#ifndef WORKBENCH_MOST_BLOCK
#define WORKBENCH_MOST_BLOCK (1 << 18)
#endif

// Both mirrored field by field by the ctypes structures in host_adam.py. Scalars are computed in
// double and rounded once to fp32, as torch does.
struct Scalars {
    float grad_scale;       // gradients are multiplied by this
    float decay;            // 1 - lr * weight_decay
    float lerp_weight;      // 1 - beta1
    float beta2;
    float one_minus_beta2;
    float sqrt_correction2; // sqrt(1 - beta2^step)
    float eps;
    float neg_step_size;    // -lr / (1 - beta1^step)
};

struct Call {
    void* weights;            // float, or bf16 where rest is not null
    std::int16_t* rest;
    float* exp_avg;
    float* exp_avg_sq;
    const void* grad;
    std::int64_t numel;
    std::int64_t decay_split; // elements before this one decay
    std::int64_t threads;
    std::int32_t niceness;    // of the threads started here; 0 leaves them as the caller is
    std::int32_t grad_bf16;
    std::int32_t reverts;     // take `undo` back first
    std::int32_t applies;     // then apply `hyper`
    std::int32_t part;        // of an update that takes nothing back: 0 all, 1 weights, 2 moments
    Scalars hyper;
    Scalars undo;
};

namespace {

enum Part { all, weights, moments };

using BFloat16 = std::uint16_t;

inline float from_bits(std::uint32_t bits) {
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline std::uint32_t to_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float widen(float x) { return x; }
inline float widen(BFloat16 x) { return from_bits(static_cast<std::uint32_t>(x) << 16); }

#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
constexpr bool has_fma = true;
#else
constexpr bool has_fma = false;
#endif

// Product and sum rounded once, where the machine can. Without hardware support std::fma is a
// library call per element, and two roundings (one unit in the last place) are the better bargain.
inline float multiply_add(float a, float b, float c) {
    if constexpr (has_fma) return std::fma(a, b, c);
    return a * b + c;
}

struct State {
    float p, m, v;
};

// How far an update moves a weight besides decay. rms: root of the corrected second moment.
inline float move(float m, float rms, const Scalars& s) {
    return (s.neg_step_size * m) / (rms + s.eps);
}

inline State apply(State old, float grad, const Scalars& s) {
    const float g = grad * s.grad_scale;
    State now;
    // torch interpolates from the nearer end
    now.m = s.lerp_weight < 0.5f ? multiply_add(s.lerp_weight, g - old.m, old.m)
                                 : multiply_add(s.lerp_weight - 1.0f, g - old.m, g);
    now.v = multiply_add(s.one_minus_beta2 * g, g, old.v * s.beta2);
    now.p = old.p * s.decay + move(now.m, std::sqrt(now.v) / s.sqrt_correction2, s);
    return now;
}

// A finite x divided by a number that many are divided by, to the bit what a division gives: the
// product with the rounded reciprocal, corrected twice by its exact remainder (Markstein 1990). An
// update with its inverse would otherwise wait for the divider and not for memory.
struct Divisor {
    float value, reciprocal;
    explicit Divisor(float x) : value(x), reciprocal(x == 0 ? 0 : 1 / x) {}
    float quotient(float x) const {
        if constexpr (!has_fma) return value == 0 ? 0 : x / value;
        const float near = x * reciprocal;
        const float nearer = multiply_add(multiply_add(-near, value, x), reciprocal, near);
        return multiply_add(multiply_add(-nearer, value, x), reciprocal, nearer);
    }
};

// An update to take back. A beta of 0 has forgotten the old moment; 0 will do, since no later
// update remembers it either.
struct Undo : Scalars {
    Divisor correction, kept_p, kept_v;
    double over_kept_m;
    explicit Undo(const Scalars& s)
        : Scalars(s), correction(s.sqrt_correction2), kept_p(s.decay), kept_v(s.beta2),
          over_kept_m(s.lerp_weight == 1 ? 0 : 1 / (1.0 - s.lerp_weight)) {}
};

// Each line takes back one rounded operation, so that what can be told is told exactly; the first
// moment's interpolation, which rounds only once, takes double. Where no more is left of a moment
// than the rounding of its sum, it was zero: moments that began at zero are zero again.
inline State revert(State now, float grad, const Undo& s) {
    constexpr float rounding = 0x1p-24f;
    const float g = grad * s.grad_scale;
    const double m = now.m - static_cast<double>(s.lerp_weight) * g;
    const float v = multiply_add(-(s.one_minus_beta2 * g), g, now.v);
    const float p = now.p - move(now.m, s.correction.quotient(std::sqrt(now.v)), s);
    State old;
    const bool no_m = std::abs(m) <= rounding * std::abs(now.m);
    old.m = no_m ? 0.0f : static_cast<float>(m * s.over_kept_m);
    old.v = v <= rounding * now.v ? 0.0f : s.kept_v.quotient(v);
    old.p = s.kept_p.quotient(p);
    return old;
}

// `count` elements; a constant count becomes straight vector code without a remainder.
template <bool split, bool reverts, bool applies, Part part, class Grad>
inline void update_some(
    float* __restrict__ whole, BFloat16* __restrict__ upper, std::int16_t* __restrict__ rest,
    float* __restrict__ exp_avg, float* __restrict__ exp_avg_sq, const Grad* __restrict__ grad,
    std::int64_t count, Scalars hyper, Undo undo) {
    for (std::int64_t i = 0; i < count; ++i) {
        State state{0.0f, exp_avg[i], exp_avg_sq[i]};
        if constexpr (part == moments) {
            // nothing is computed from weights, nor written there
        } else if constexpr (split) {
            const std::int32_t low = rest[i];
            const std::uint32_t high = static_cast<std::uint32_t>(upper[i]) << 16;
            state.p = from_bits(high + static_cast<std::uint32_t>(low));
        } else {
            state.p = whole[i];
        }
        const float g = widen(grad[i]);
        if constexpr (reverts) state = revert(state, g, undo);
        if constexpr (applies) state = apply(state, g, hyper);
        if constexpr (part != weights) {
            exp_avg[i] = state.m;
            exp_avg_sq[i] = state.v;
        }
        if constexpr (part == moments) {
        } else if constexpr (split) {
            const std::uint32_t bits = to_bits(state.p);
            upper[i] = static_cast<BFloat16>((bits + 0x8000u) >> 16);
            rest[i] = static_cast<std::int16_t>(bits);
        } else {
            whole[i] = state.p;
        }
    }
}

inline void prefetch(const void* from, std::size_t bytes) {
#if defined(__GNUC__)
    for (std::size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(static_cast<const char*>(from) + at, 0, WORKBENCH_LOCALITY);
#endif
}

template <class Grad, bool split, bool reverts, bool applies, Part part>
void update_range(const Call& call, std::int64_t begin, std::int64_t end, bool decays) {
    float* whole = static_cast<float*>(call.weights);
    BFloat16* upper = static_cast<BFloat16*>(call.weights);
    const Grad* grad = static_cast<const Grad*>(call.grad);
    Scalars hyper = call.hyper, applied = call.undo;
    if (!decays) hyper.decay = applied.decay = 1.0f;
    const Undo undo(applied);
    const auto some = [&](std::int64_t i, std::int64_t count) {
        update_some<split, reverts, applies, part>(
            whole + i, upper + i, call.rest + i, call.exp_avg + i, call.exp_avg_sq + i, grad + i,
            count, hyper, undo);
    };
    // Processors fetch ahead by themselves, but stop at each page's end, and five streams end pages
    // often.
    constexpr std::int64_t tile = 64;
    std::int64_t i = begin;
    for (; i + tile <= end; i += tile) {
        const std::int64_t ahead = i + WORKBENCH_PREFETCH;
        if (ahead > i && ahead < end) { // behind the end another thread is at work
            prefetch(call.exp_avg + ahead, 4 * tile);
            prefetch(call.exp_avg_sq + ahead, 4 * tile);
            prefetch(grad + ahead, sizeof(Grad) * tile);
            if constexpr (part == moments) {
            } else if constexpr (split) {
                prefetch(upper + ahead, 2 * tile);
                prefetch(call.rest + ahead, 2 * tile);
            } else {
                prefetch(whole + ahead, 4 * tile);
            }
        }
        some(i, tile);
    }
    some(i, end - i);
}

// Lets threads that insist more on a core have it. Only started threads are asked to: the caller may
// have to hold a lock (Python's) that those others wait for.
inline void yield_to_others(int niceness) {
#if defined(__linux__)
    if (niceness > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), niceness);
#endif
}

// Runs `work` in `threads` threads, of which the caller is one. Each starts half of those left to
// start, so that the last one waits for a few starts and not for all. If the system gives fewer
// threads than asked for, those there are do the work.
template <class Work>
void run_in_threads(std::int64_t threads, int niceness, const Work& work) {
    std::vector<std::thread> started;
    try {
        for (; threads > 1; threads -= threads / 2)
            started.emplace_back([&work, niceness, half = threads / 2] {
                yield_to_others(niceness);
                run_in_threads(half, niceness, work);
            });
    } catch (const std::system_error&) {
    }
    work();
    for (auto& thread : started) thread.join();
}

template <class Grad, bool split, bool reverts, bool applies, Part part = all>
void update_all(const Call& call) {
    // Threads take the next block when they are done with one, so one that starts late or shares
    // its core does less, instead of all others waiting for it. Blocks shrink towards the end,
    // where all others wait for the last. They are a whole number of cache lines of every slab, so
    // that no two threads write one line.
    constexpr std::int64_t least = WORKBENCH_LEAST_BLOCK, most = WORKBENCH_MOST_BLOCK;
    // Starting a thread costs about as much as it updates of the least slab that gets one.
    constexpr std::int64_t worth_a_thread = 1 << 16;
    const std::int64_t threads = std::min(call.threads, call.numel / worth_a_thread + 1);
    std::atomic<std::int64_t> next{0};
    run_in_threads(threads, call.niceness, [&] {
        for (std::int64_t begin = next.load(std::memory_order_relaxed); begin < call.numel;) {
            const std::int64_t fair = (call.numel - begin) / (2 * threads) / 64 * 64;
            const std::int64_t end = begin + std::clamp(fair, least, most);
            if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
            const std::int64_t stop = std::min(end, call.numel);
            const std::int64_t border = std::clamp(call.decay_split, begin, stop);
            update_range<Grad, split, reverts, applies, part>(call, begin, border, true);
            update_range<Grad, split, reverts, applies, part>(call, border, stop, false);
            begin = end; // a guess: others have gone on, and the exchange says how far
        }
    });
}

template <class Grad, bool split>
void dispatch_work(const Call& call) {
    if (call.part == moments) return update_all<Grad, false, false, true, moments>(call);
    if (call.part == weights) return update_all<Grad, split, false, true, weights>(call);
    if (!call.reverts) return update_all<Grad, split, false, true>(call);
    call.applies ? update_all<Grad, split, true, true>(call)
                 : update_all<Grad, split, true, false>(call);
}

template <class Grad>
void dispatch_masters(const Call& call) {
    call.rest != nullptr ? dispatch_work<Grad, true>(call) : dispatch_work<Grad, false>(call);
}

} // namespace

extern "C" void workbench_adamw(const Call* call) {
    call->grad_bf16 ? dispatch_masters<BFloat16>(*call) : dispatch_masters<float>(*call);
}
