// The processes around the arithmetic: bursts from and to memory, and the way between stored formats and lanes of fp32.
#ifndef NEARFIELD_PROCESS_HPP
#define NEARFIELD_PROCESS_HPP

#include "checksum.hpp"
#include "formats.hpp"
#include "loops.hpp"
#include "span.hpp"

namespace nearfield {

// Words of memory that the elements of a pass take in a format.
inline std::uint32_t raw_words(const Span &span, std::uint32_t format) {
#pragma HLS INLINE
    if (format == FORMAT_NONE) {
        return 0;
    }
    return is_narrow(format) ? span.words / 2 : span.words;
}

inline std::uint64_t raw_first(const Span &span, std::uint32_t format) {
#pragma HLS INLINE
    return span.first / (is_narrow(format) ? 2 * LANES : LANES);
}

template <int LOOP>
void load(const word *from, Span span, std::uint32_t format, hls::stream<word> &out) {
    const std::uint32_t words = raw_words(span, format);
    const std::uint64_t first = raw_first(span, format);
    NEARFIELD_PASSES(LOOP, words);
load_words:
    for (std::uint32_t at = 0; at < words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        out.write(from[first + at]);
    }
}

template <int LOOP>
void store(hls::stream<word> &in, Span span, std::uint32_t format, word *to) {
    const std::uint32_t words = raw_words(span, format);
    const std::uint64_t first = raw_first(span, format);
    NEARFIELD_PASSES(LOOP, words);
store_words:
    for (std::uint32_t at = 0; at < words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        to[first + at] = in.read();
    }
}

// Stored words to lanes of fp32; where nothing is stored, zeros. Sums what was read.
template <int LOOP>
void unpack(hls::stream<word> &in, Span span, std::uint32_t format, hls::stream<word> &out,
            hls::stream<std::uint64_t> &sums) {
    const bool narrow = is_narrow(format);
    std::uint64_t sum = 0;
    word raw;
    NEARFIELD_PASSES(LOOP, span.words);
unpack_words:
    for (std::uint32_t at = 0; at < span.words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        const bool fresh = format != FORMAT_NONE && (!narrow || (at & 1) == 0);
        if (fresh) {
            raw = in.read();
            const std::uint64_t first = span.first + std::uint64_t(at) * LANES;
            const Active active = active_in(span, first, narrow ? 2 * LANES : LANES);
            const std::uint64_t element = span.place + first;
            sum += weighted(counted(raw, narrow, active), narrow ? element / 2 : element);
        }
        word lanes;
        for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
            std::uint32_t bits = 0;
            if (narrow) {
                const int half = (at & 1) == 0 ? 0 : LANES / 2;
                const std::uint32_t both = lane(raw, half + index / 2);
                const std::uint32_t own = index % 2 == 0 ? both & 0xffffu : both >> 16;
                bits = format == FORMAT_FP16 ? from_fp16(own) : own << 16;
            } else if (format != FORMAT_NONE) {
                bits = lane(raw, index);
            }
            set_lane(lanes, index, bits);
        }
        out.write(lanes);
    }
    sums.write(sum);
}

// How fp32 becomes bfloat16.
struct Rounding {
    bool dithered;           // else to the nearest
    bool copies;             // elements go through unchanged
    std::uint32_t counter;   // the dither's place of the pass's first element
    std::uint32_t key0;
    std::uint32_t key1;
    std::uint32_t shift;     // 0: the lower half of the random bits, 16: the upper one
};

// Lanes of fp32 to stored words. Sums what is written. Where the dither rounds, elements that do not count, or go
// through unchanged, are cut and keep their bits.
template <int LOOP>
void pack(hls::stream<word> &in, Span span, std::uint32_t format, Rounding rounding, hls::stream<word> &out,
          hls::stream<std::uint64_t> &sums) {
    const bool narrow = is_narrow(format);
    std::uint64_t sum = 0;
    word raw;
    NEARFIELD_PASSES(LOOP, span.words);
pack_words:
    for (std::uint32_t at = 0; at < span.words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        const word lanes = in.read();
        const std::uint64_t first = span.first + std::uint64_t(at) * LANES;
        const Active active = active_in(span, first, LANES);
        std::uint32_t halves[LANES];
        for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
            const std::uint32_t bits = lane(lanes, index);
            const std::uint32_t counter = rounding.counter + at * LANES + index;
            const std::uint32_t random = dither_bits(counter, rounding.key0, rounding.key1) >> rounding.shift;
            if (format == FORMAT_FP16) {
                halves[index] = to_fp16(bits);
            } else if (!rounding.dithered) {
                halves[index] = to_bf16(bits, nearest_bf16(bits));
            } else if (!rounding.copies && counts(active, index)) {
                halves[index] = to_bf16(bits, random & 0xffffu);
            } else {
                halves[index] = bits >> 16;
            }
        }
        for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
            if (!narrow) {
                set_lane(raw, index, lane(lanes, index));
            } else if (index / (LANES / 2) == int(at & 1)) {
                const int own = 2 * (index % (LANES / 2));
                set_lane(raw, index, halves[own] | (halves[own + 1] << 16));
            }
        }
        const bool full = format != FORMAT_NONE && (!narrow || (at & 1) == 1);
        if (full) {
            const std::uint64_t begin = narrow ? first - LANES : first;
            const Active whole = active_in(span, begin, narrow ? 2 * LANES : LANES);
            const std::uint64_t element = span.place + begin;
            sum += weighted(counted(raw, narrow, whole), narrow ? element / 2 : element);
            out.write(raw);
        }
    }
    sums.write(sum);
}

} // namespace nearfield

#endif
