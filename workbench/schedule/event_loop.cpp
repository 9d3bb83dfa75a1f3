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

constexpr std::int64_t never = -1;

// Lanes that take turns on one device, as turns.py's `Devices`.
class Devices {
  public:
    // Of each lane its device, or -1, and where its actions begin among `order`, for lanes of
    // devices; of each action whether it goes on with the pass before it, whom it yields to, and
    // where those begin that hold it back. `places` of actions among those that are ready, or none.
    Devices(std::int64_t actions, std::int64_t nodes, std::int64_t lanes, std::int64_t devices,
            const std::int32_t* device_of, const std::int64_t* first, const std::int64_t* order,
            const std::int64_t* goes_on, const std::int64_t* yields_to,
            const std::int64_t* held_first, const std::int64_t* held, const std::int64_t* places)
        : actions_(actions), nodes_(nodes), device_of_(device_of), first_(first), order_(order),
          goes_on_(goes_on), yields_to_(yields_to), held_first_(held_first), held_(held), places_(places),
          lanes_(static_cast<std::size_t>(devices)), started_(static_cast<std::size_t>(lanes), 0),
          chosen_(static_cast<std::size_t>(devices), never),
          busy_(static_cast<std::size_t>(devices), 0) {
        for (std::int32_t lane = 0; lane < lanes; ++lane)
            if (device_of[lane] >= 0) lanes_[device_of[lane]].push_back(lane);
        for (std::int32_t device = 0; device < devices; ++device) free.push_back(device);
    }

    std::int32_t device(std::int32_t lane) const { return device_of_[lane]; }

    void end(std::int32_t device) {
        busy_[device] = 0;
        free.push_back(device);
    }

    void begin(const std::int32_t* missing, const std::vector<char>& ended,
               std::vector<std::int64_t>& begun) {
        for (const std::int32_t device : free) {
            if (busy_[device]) continue;
            if (places_ != nullptr) chosen_[device] = choose_ready(device, missing);
            else if (chosen_[device] == never) chosen_[device] = choose(device, ended);
            const std::int64_t node = chosen_[device];
            if (node == never || missing[node] != 0) continue;
            chosen_[device] = never;
            busy_[device] = 1;
            begun.push_back(node);
        }
        free.clear();
    }

    std::vector<std::int32_t> free; // devices that may begin something now

  private:
    std::int64_t choose_ready(std::int32_t device, const std::int32_t* missing) {
        std::int64_t found = never, place = 0;
        std::int32_t of = 0;
        for (const std::int32_t lane : lanes_[device]) {
            const std::int64_t count = first_[lane + 1] - first_[lane];
            const std::int64_t action = order_[first_[lane] + started_[lane] % count];
            const std::int64_t node = started_[lane] / count * actions_ + action;
            if (node >= nodes_ || missing[node] != 0) continue;
            if (found != never && places_[action] >= place) continue;
            found = node;
            place = places_[action];
            of = lane;
        }
        if (found != never) ++started_[of];
        return found;
    }

    std::int64_t choose(std::int32_t device, const std::vector<char>& ended) {
        const auto count = [&](std::int32_t lane) { return first_[lane + 1] - first_[lane]; };
        std::int64_t begin = nodes_; // of the step
        for (const std::int32_t lane : lanes_[device])
            begin = std::min(begin, started_[lane] / count(lane) * actions_);
        if (begin >= nodes_) return never;
        std::vector<std::pair<std::int64_t, std::int32_t>> heads; // (action, lane)
        for (const std::int32_t lane : lanes_[device]) {
            if (started_[lane] / count(lane) * actions_ != begin) continue;
            const std::int64_t action = order_[first_[lane] + started_[lane] % count(lane)];
            if (goes_on_[action]) {
                ++started_[lane];
                return begin + action;
            }
            bool held = false;
            for (std::int64_t at = held_first_[action]; !held && at < held_first_[action + 1]; ++at)
                held = !ended[begin + held_[at]];
            if (!held) heads.emplace_back(action, lane);
        }
        if (heads.empty()) return never;
        std::sort(heads.begin(), heads.end());
        const std::int64_t wanted = yields_to_[heads[0].first];
        const bool yields = heads.size() > 1 && wanted != never && !ended[begin + wanted];
        const auto [action, lane] = heads[yields];
        ++started_[lane];
        return begin + action;
    }

    std::int64_t actions_, nodes_;
    const std::int32_t* device_of_;
    const std::int64_t *first_, *order_, *goes_on_, *yields_to_, *held_first_, *held_, *places_;
    std::vector<std::vector<std::int32_t>> lanes_;
    std::vector<std::int64_t> started_, chosen_;
    std::vector<char> busy_;
};

} // namespace

// A schedule of so many actions, unrolled to `nodes`; of each action its lane, its seconds alone (or
// those of each node: there are so many `durations`), and the distances to those that wait for it, which lie from `first[i]` to `first[i + 1]`; of each lane
// its rank, and its bit in a set of busy lanes of that rank; of each node how many it waits for.
//
// Of `devices` lanes take turns (see `Devices` for what follows); none where there are 0. Where
// `eager`: each takes what is ready, by `places`.
//
// `ask` says how much a lane slows down beside a set of busy lanes, below 1 if it cannot say. Returns
// how many nodes ended, less than all where they wait for each other, and -1 if `ask` could not say.
extern "C" std::int64_t workbench_times(
    std::int64_t actions, std::int64_t nodes, std::int64_t lanes, std::int64_t ranks,
    std::int64_t durations, const std::int32_t* lane_of, const double* alone, const std::int64_t* first,
    const std::int64_t* distances, const std::int32_t* rank_of, const std::int32_t* bit_of,
    std::int32_t* missing, std::int64_t devices, std::int64_t eager, const std::int32_t* device_of,
    const std::int64_t* lane_first, const std::int64_t* lane_actions, const std::int64_t* goes_on,
    const std::int64_t* yields_to, const std::int64_t* held_first, const std::int64_t* held,
    const std::int64_t* places, double (*ask)(std::int32_t, std::uint64_t), double* start, double* end) {
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
        if (missing[node] == 0 && (!devices || device_of[lane_of[node]] < 0)) ready.push_back(node);
    Devices turns(actions, nodes, devices ? lanes : 0, devices, device_of, lane_first, lane_actions,
                  goes_on, yields_to, held_first, held, eager ? places : nullptr);
    std::vector<char> has_ended(static_cast<std::size_t>(devices ? nodes : 0), 0);
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
            lane[i].left = alone[node % durations];
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
        if (devices) {
            while (!heap.empty() && heap.top().plan != lane[heap.top().lane].plan) heap.pop();
            if (heap.empty() || heap.top().time > now) { // all that ends now has ended
                turns.begin(missing, has_ended, ready);
                if (!ready.empty()) continue;
            }
        }
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
                if (follower >= nodes || --missing[follower] != 0) continue;
                const std::int32_t device = devices ? turns.device(lane_of[follower % actions]) : -1;
                if (device < 0) ready.push_back(follower);
                else turns.free.push_back(device);
            }
            if (devices) {
                has_ended[node] = 1;
                if (turns.device(next.lane) >= 0) turns.end(turns.device(next.lane));
            }
        }
        if (changed.empty()) return ended;
    }
}
