// When every action of a schedule starts and ends: event_loop.py's loop, compiled.
//
// A planner simulates hundreds of schedules of thousands of actions before it answers, and somebody
// who moves a slider waits for it. The loop is the one in Python, line by line, and gives the same
// bits: both take the next ending from a heap in the order (time, lane, plan).

#include <algorithm>
#include <cstdint>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

struct Ending {
    double time;
    std::int32_t lane;
    std::int64_t plan;
    bool operator>(const Ending& other) const {
        return std::tie(time, lane, plan) > std::tie(other.time, other.lane, other.plan);
    }
};

struct Lane {
    std::int64_t running = 0; // its node
    double left = 0;          // seconds of work left at `since`, were there no slowdown
    double since = 0;
    double factor = 0;     // present slowdown, 0 for what has only just started
    std::int64_t plan = 0; // of the endings planned for a lane, only the last one holds
};

using Factors = std::vector<std::pair<std::int32_t, double>>; // (lane, slowdown)

} // namespace

// A schedule of so many actions, unrolled to `nodes`; of each action its lane, its seconds alone, and
// the distances to those that wait for it, which lie from `first[i]` to `first[i + 1]`; of each lane
// its rank, and its bit in a set of busy lanes of that rank; of each node how many it waits for.
//
// `ask` says how much a lane slows down beside a set of busy lanes, below 1 if it cannot say. Returns
// how many nodes ended, less than all where they wait for each other, and -1 if `ask` could not say.
extern "C" std::int64_t workbench_times(
    std::int64_t actions, std::int64_t nodes, std::int64_t lanes, std::int64_t ranks,
    const std::int32_t* lane_of, const double* alone, const std::int64_t* first,
    const std::int64_t* distances, const std::int32_t* rank_of, const std::int32_t* bit_of,
    std::int32_t* missing, double (*ask)(std::int32_t, std::uint64_t), double* start, double* end) {
    std::vector<Lane> lane(static_cast<std::size_t>(lanes));
    std::vector<std::vector<std::int32_t>> lanes_of(static_cast<std::size_t>(ranks));
    for (std::int32_t i = 0; i < lanes; ++i) lanes_of[rank_of[i]].push_back(i);
    std::vector<std::uint64_t> busy(static_cast<std::size_t>(ranks), 0);
    std::vector<std::unordered_map<std::uint64_t, Factors>> known(static_cast<std::size_t>(ranks));
    std::vector<std::int32_t> changed; // ranks where a lane became busy or idle just now
    std::vector<char> has_changed(static_cast<std::size_t>(ranks), 0);
    std::priority_queue<Ending, std::vector<Ending>, std::greater<>> heap;
    std::vector<std::int64_t> ready;
    for (std::int64_t node = 0; node < std::min(actions, nodes); ++node)
        if (missing[node] == 0) ready.push_back(node);
    const auto note = [&](std::int32_t rank) {
        if (!has_changed[rank]) changed.push_back(rank);
        has_changed[rank] = 1;
    };
    double now = 0;
    std::int64_t ended = 0;
    while (true) {
        for (const std::int64_t node : ready) {
            const std::int32_t i = lane_of[node % actions];
            start[node] = lane[i].since = now;
            lane[i].running = node;
            lane[i].left = alone[node % actions];
            lane[i].factor = 0;
            busy[rank_of[i]] |= std::uint64_t{1} << bit_of[i];
            note(rank_of[i]);
        }
        for (const std::int32_t rank : changed) {
            const auto [place, is_new] = known[rank].try_emplace(busy[rank]);
            if (is_new)
                for (const std::int32_t i : lanes_of[rank])
                    if (busy[rank] >> bit_of[i] & 1) {
                        const double slowdown = ask(i, busy[rank]);
                        if (!(slowdown >= 1)) return -1;
                        place->second.emplace_back(i, slowdown);
                    }
            for (const auto& [i, slowdown] : place->second) {
                Lane& one = lane[i];
                if (slowdown == one.factor) continue;
                if (one.factor != 0)
                    one.left = std::max(0.0, one.left - (now - one.since) / one.factor);
                one.since = now;
                one.factor = slowdown;
                heap.push({now + one.left * slowdown, i, ++one.plan});
            }
            has_changed[rank] = 0;
        }
        ready.clear();
        changed.clear();
        // Everything that ends at one instant.
        while (!heap.empty() && (changed.empty() || heap.top().time == now)) {
            const Ending next = heap.top();
            heap.pop();
            Lane& one = lane[next.lane];
            if (next.plan != one.plan) continue;
            const std::int64_t node = one.running, action = node % actions;
            end[node] = now = next.time;
            ++ended;
            ++one.plan;
            busy[rank_of[next.lane]] &= ~(std::uint64_t{1} << bit_of[next.lane]);
            note(rank_of[next.lane]);
            for (std::int64_t at = first[action]; at < first[action + 1]; ++at) {
                const std::int64_t follower = node + distances[at];
                if (follower < nodes && --missing[follower] == 0) ready.push_back(follower);
            }
        }
        if (changed.empty()) return ended;
    }
}
