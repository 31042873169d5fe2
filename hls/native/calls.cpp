// The way into the kernels for a program: one slot of 64 bits for each argument, as in a kernel's register file.
#include "../kernels/kernels.hpp"

#include <cstring>
#include <tuple>
#include <utility>

using nearfield::word;

namespace {

const int LOOPS = 64;
thread_local std::uint64_t counts[LOOPS];
// Of the pass of the dataflow that is under way: which loops have run, and the most passes of one.
thread_local std::uint64_t seen;
thread_local std::uint64_t longest;
// Over all passes of the dataflow: their number, and the passes of the longest loop of each.
thread_local std::uint64_t chunks;
thread_local std::uint64_t cycles;

// A letter for each type of argument: r and w for memory that is read and written, i, l, f for numbers.
template <typename T> struct Type;
template <> struct Type<const word *> { static const char letter = 'r'; };
template <> struct Type<word *> { static const char letter = 'w'; };
template <> struct Type<std::uint32_t> { static const char letter = 'i'; };
template <> struct Type<std::uint64_t> { static const char letter = 'l'; };
template <> struct Type<float> { static const char letter = 'f'; };

template <typename T> T from_slot(std::uint64_t slot) {
    T value;
    static_assert(sizeof(T) <= sizeof slot, "an argument fits its slot");
    std::memcpy(&value, &slot, sizeof value);
    return value;
}

template <typename... Args, std::size_t... Places>
void call(void (*kernel)(Args...), const std::uint64_t *slots, std::index_sequence<Places...>) {
    kernel(from_slot<Args>(slots[Places])...);
}

template <typename... Args> void call(void (*kernel)(Args...), const std::uint64_t *slots) {
    call(kernel, slots, std::index_sequence_for<Args...>());
}

template <typename... Args> const char *letters(void (*)(Args...)) {
    static const char text[] = {Type<Args>::letter..., 0};
    return text;
}

} // namespace

#define NEARFIELD_KERNEL(name)                                                                                             \
    extern "C" void nearfield_call_##name(const std::uint64_t *slots) { call(name, slots); }                               \
    extern "C" const char *nearfield_letters_##name() { return letters(name); }

NEARFIELD_KERNEL(update)
NEARFIELD_KERNEL(update_topk)
NEARFIELD_KERNEL(check_pairs)

namespace {

void end_of_chunk() {
    chunks += seen != 0 ? 1 : 0;
    cycles += longest;
    seen = 0;
    longest = 0;
}

} // namespace

// Each loop runs once in a pass of the dataflow; where one comes again, the next pass has begun. Processes of a pass run side
// by side, so it lasts as long as the longest.
extern "C" void nearfield_count(int loop, std::uint64_t passes) {
    counts[loop] += passes;
    if (seen >> loop & 1) {
        end_of_chunk();
    }
    seen |= std::uint64_t(1) << loop;
    longest = passes > longest ? passes : longest;
}

// Passes of each loop on this thread since the last call; then the passes of the dataflow, and the sum of the longest loop of
// each.
extern "C" void nearfield_take_counts(std::uint64_t *into, int loops) {
    end_of_chunk();
    for (int loop = 0; loop < loops; loop++) {
        into[loop] = counts[loop];
        counts[loop] = 0;
    }
    into[loops] = chunks;
    into[loops + 1] = cycles;
    chunks = 0;
    cycles = 0;
}
