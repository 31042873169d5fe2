// Which elements a pass works on, and which of them count.
#ifndef NEARFIELD_SPAN_HPP
#define NEARFIELD_SPAN_HPP

#include "word.hpp"

namespace nearfield {

// Elements of one pass of the dataflow region. Places count from the start of the buffers; elements outside
// [begin, end) go through unchanged and are not summed.
struct Span {
    std::uint64_t first;   // first element, a multiple of 32
    std::uint32_t words;   // words of fp32, an even number
    std::uint64_t begin;   // first element that counts
    std::uint64_t end;     // the one behind the last
    std::uint64_t place;   // place of the buffers' first element in its subgroup, a multiple of 32
    bool is_first;         // of the launch
    bool is_last;
};

// What of `elements` elements from `first` on counts: [low, high), from 0 to `elements`.
struct Active {
    std::uint32_t low;
    std::uint32_t high;
};

inline std::uint32_t clamped(std::uint64_t place, std::uint64_t first, std::uint32_t elements) {
#pragma HLS INLINE
    if (place <= first) {
        return 0;
    }
    const std::uint64_t distance = place - first;
    return distance < elements ? std::uint32_t(distance) : elements;
}

inline Active active_in(const Span &span, std::uint64_t first, std::uint32_t elements) {
#pragma HLS INLINE
    Active active;
    active.low = clamped(span.begin, first, elements);
    active.high = clamped(span.end, first, elements);
    return active;
}

inline bool counts(const Active &active, std::uint32_t element) {
#pragma HLS INLINE
    return element >= active.low && element < active.high;
}

// The lanes of a raw word that count; the others are zero. A word holds 16 elements, or 32 narrow ones.
inline word counted(const word &raw, bool narrow, const Active &active) {
#pragma HLS INLINE
    word out;
    for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
        std::uint32_t mask;
        if (narrow) {
            const std::uint32_t low = counts(active, 2 * index) ? 0x0000ffffu : 0;
            const std::uint32_t high = counts(active, 2 * index + 1) ? 0xffff0000u : 0;
            mask = low | high;
        } else {
            mask = counts(active, index) ? 0xffffffffu : 0;
        }
        set_lane(out, index, lane(raw, index) & mask);
    }
    return out;
}

} // namespace nearfield

#endif
