// The way into the kernels for a program: one slot of 64 bits for each argument, as in a kernel's register file.
#include "../kernels/kernels.hpp"

#include <cstring>
#include <tuple>
#include <utility>

using nearfield::word;

namespace {

const int LOOPS = 64;
thread_local std::uint64_t counts[LOOPS];

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

extern "C" void nearfield_count(int loop, std::uint64_t passes) { counts[loop] += passes; }

// Passes of each loop on this thread since the last call.
extern "C" void nearfield_take_counts(std::uint64_t *into, int length) {
    for (int loop = 0; loop < length; loop++) {
        into[loop] = counts[loop];
        counts[loop] = 0;
    }
}
