// Words of 512 bits, and the numbers in them.
#ifndef NEARFIELD_WORD_HPP
#define NEARFIELD_WORD_HPP

#include <ap_int.h>
#include <cstdint>
#include <hls_stream.h>

namespace nearfield {

typedef ap_uint<512> word;

// 32-bit lanes of a word, and elements that one word of fp32 holds.
const int LANES = 16;
// Elements that are worked on in one pass of the dataflow region.
const std::uint32_t CHUNK_ELEMENTS = 65536;
const std::uint32_t CHUNK_WORDS = CHUNK_ELEMENTS / LANES;

inline std::uint32_t lane(const word &from, int index) {
#pragma HLS INLINE
    return from.range(32 * index + 31, 32 * index).to_uint();
}

inline void set_lane(word &to, int index, std::uint32_t bits) {
#pragma HLS INLINE
    to.range(32 * index + 31, 32 * index) = bits;
}

inline float as_float(std::uint32_t bits) {
#pragma HLS INLINE
    union {
        std::uint32_t bits;
        float value;
    } both;
    both.bits = bits;
    return both.value;
}

inline std::uint32_t as_bits(float value) {
#pragma HLS INLINE
    union {
        float value;
        std::uint32_t bits;
    } both;
    both.value = value;
    return both.bits;
}

} // namespace nearfield

// Counts the passes of a loop where they are asked for (bench hls); nothing in hardware.
#ifdef NEARFIELD_COUNT_PASSES
extern "C" void nearfield_count(int loop, std::uint64_t passes);
#define NEARFIELD_PASSES(loop, passes) nearfield_count(loop, passes)
#else
#define NEARFIELD_PASSES(loop, passes)
#endif

// What a process keeps from one pass of the dataflow region to the next: registers in hardware; in a program, where
// several threads may run the same kernel, a copy for each.
#ifdef __SYNTHESIS__
#define NEARFIELD_STATE static
#else
#define NEARFIELD_STATE static thread_local
#endif

#endif
