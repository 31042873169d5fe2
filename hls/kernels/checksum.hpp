// The state store's checksum: the sum of 32-bit words, each times (2i + 1) mod 2^32, i its place in the array, mod 2^64.
#ifndef NEARFIELD_CHECKSUM_HPP
#define NEARFIELD_CHECKSUM_HPP

#include "word.hpp"

namespace nearfield {

// The sum of a word's lanes, the first of which is at place `first` of the array, a multiple of 16. Within such a word the
// weights do not wrap, so weight(first + l) = weight(first) + 2·l, and one wide product serves all lanes.
inline std::uint64_t weighted(const word &lanes, std::uint64_t first) {
#pragma HLS INLINE
    std::uint64_t plain = 0;
    std::uint64_t by_place = 0;
    for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
        plain += lane(lanes, index);
        by_place += std::uint64_t(lane(lanes, index)) * unsigned(index);
    }
    const std::uint32_t weight = std::uint32_t(first) * 2 + 1;
    return plain * weight + 2 * by_place;
}

} // namespace nearfield

#endif
