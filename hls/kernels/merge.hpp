// Pairs of index and value, sorted by index, become the lanes of a dense gradient on chip: no dense gradient lies in memory.
#ifndef NEARFIELD_MERGE_HPP
#define NEARFIELD_MERGE_HPP

#include "checksum.hpp"
#include "loops.hpp"
#include "span.hpp"

namespace nearfield {

// The pairs of one chunk, as places in the arrays of pairs.
struct Range {
    std::uint32_t from;
    std::uint32_t to;
};

inline std::uint32_t first_word(const Range &range) {
#pragma HLS INLINE
    return range.from / LANES;
}

// Words that hold pairs of the chunk. One at a border belongs to two chunks and is read for each.
inline std::uint32_t words_of(const Range &range) {
#pragma HLS INLINE
    return range.to > range.from ? (range.to - 1) / LANES - range.from / LANES + 1 : 0;
}

// A word of the gradient that is not zero, and its number in the pass.
struct Row {
    std::uint32_t at;
    word lanes;
};
const std::uint32_t NO_ROW = 0xffffffffu;

// A word of pairs, sorted out: bit i of `starts` says that pair i begins a new row, bit i of `valid` that it counts.
struct Sorted {
    word indices;
    word values;
    std::uint32_t starts;
    std::uint32_t valid;
};

// Looks up which pairs belong to a chunk. `bounds` is the table of check_pairs, 16 entries a word: entry c is the number of
// pairs with an index below c chunks.
inline void find_pairs(const word *bounds, std::uint32_t chunk, hls::stream<Range> &to_indices,
                       hls::stream<Range> &to_values, hls::stream<Range> &to_merge) {
    word table = bounds[chunk / LANES];
    Range range;
    range.from = lane(table, chunk % LANES);
    if ((chunk + 1) % LANES == 0) {
        table = bounds[(chunk + 1) / LANES];
    }
    range.to = lane(table, (chunk + 1) % LANES);
    to_indices.write(range);
    to_values.write(range);
    to_merge.write(range);
}

template <int LOOP> void load_pairs(const word *from, hls::stream<Range> &ranges, hls::stream<word> &out) {
    const Range range = ranges.read();
    const std::uint32_t first = first_word(range);
    const std::uint32_t words = words_of(range);
    NEARFIELD_PASSES(LOOP, words);
load_pair_words:
    for (std::uint32_t at = 0; at < words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        out.write(from[first + at]);
    }
}

// Which pairs of a word count, and where rows begin.
inline Sorted sorted_out(const word &indices, const word &values, std::uint32_t first_pair, const Range &range,
                         const Span &span) {
#pragma HLS INLINE
    const std::uint64_t low = span.place + (span.begin > span.first ? span.begin : span.first);
    const std::uint64_t whole = span.first + std::uint64_t(span.words) * LANES;
    const std::uint64_t high = span.place + (span.end < whole ? span.end : whole);
    Sorted out;
    out.indices = indices;
    out.values = values;
    out.starts = 0;
    out.valid = 0;
    for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
        const std::uint32_t place = first_pair + index;
        const std::uint32_t element = lane(indices, index);
        const bool valid = place >= range.from && place < range.to && element >= low && element < high;
        const bool follows = index > 0 && (out.valid >> (index > 0 ? index - 1 : 0) & 1) != 0 &&
                             lane(indices, index > 0 ? index - 1 : 0) / LANES == element / LANES;
        out.valid |= valid ? 1u << index : 0;
        out.starts |= valid && !follows ? 1u << index : 0;
    }
    return out;
}

// The row that the lowest bit of `starts` begins: its number, and its pairs in their lanes.
inline Row row_of(const Sorted &pairs, std::uint32_t starts, std::uint32_t first_row) {
#pragma HLS INLINE
    const std::uint32_t lowest = starts & (0u - starts);
    const std::uint32_t others = starts & ~lowest;
    const std::uint32_t next = others & (0u - others);
    // Pairs from the first of this row to before the first of the next one.
    const std::uint32_t group = pairs.valid & ~(lowest - 1) & (others == 0 ? 0xffffu : next - 1);
    Row row;
    row.at = 0;
    for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
        row.at |= (lowest >> index & 1) != 0 ? lane(pairs.indices, index) / LANES - first_row : 0;
    }
    for (int to = 0; to < LANES; to++) {
#pragma HLS UNROLL
        std::uint32_t bits = 0;
        for (int from = 0; from < LANES; from++) {
#pragma HLS UNROLL
            const bool here = (group >> from & 1) != 0 && lane(pairs.indices, from) % LANES == unsigned(to);
            bits |= here ? lane(pairs.values, from) : 0;
        }
        set_lane(row.lanes, to, bits);
    }
    return row;
}

// Sorts pairs into rows: a pass for each row that begins in a word of pairs, and one for a word without any. Sums the values
// by their places in their array, and counts the pairs. A row whose pairs lie in two words leaves in two parts.
inline void merge(hls::stream<word> &indices, hls::stream<word> &values, hls::stream<Range> &ranges, Span span,
                  hls::stream<Row> &parts, hls::stream<std::uint64_t> &sums, hls::stream<std::uint64_t> &counted) {
    const Range range = ranges.read();
    const std::uint32_t words = words_of(range);
    const std::uint32_t first_row = std::uint32_t((span.place + span.first) / LANES);
    std::uint64_t sum = 0;
    std::uint64_t count = 0;
    std::uint32_t read = 0;
    std::uint32_t left = 0;
    std::uint64_t passes = 0;
    Sorted pairs;
    pairs.valid = 0;
    pairs.starts = 0;
merge_rows:
    while (left != 0 || read < words) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 8192
        if (left == 0) {
            const std::uint32_t first_pair = (first_word(range) + read) * LANES;
            pairs = sorted_out(indices.read(), values.read(), first_pair, range, span);
            left = pairs.starts;
            word masked;
            for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
                const bool valid = (pairs.valid >> index & 1) != 0;
                set_lane(masked, index, valid ? lane(pairs.values, index) : 0);
                count += valid ? 1 : 0;
            }
            sum += weighted(masked, first_pair);
            read++;
        }
        if (left != 0) {
            parts.write(row_of(pairs, left, first_row));
            left &= left - 1;
        }
        passes++;
    }
    NEARFIELD_PASSES(LOOP_MERGE, passes);
    Row end;
    end.at = NO_ROW;
    parts.write(end);
    sums.write(sum);
    counted.write(count);
}

// Joins the parts of a row. Ends with a row NO_ROW.
inline void join(hls::stream<Row> &parts, hls::stream<Row> &rows) {
    Row held = parts.read();
    std::uint64_t passes = 0;
join_rows:
    while (held.at != NO_ROW) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 8192
        const Row next = parts.read();
        if (next.at == held.at) {
            for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
                set_lane(held.lanes, index, lane(held.lanes, index) | lane(next.lanes, index));
            }
        } else {
            rows.write(held);
            held = next;
        }
        passes++;
    }
    NEARFIELD_PASSES(LOOP_JOIN, passes);
    rows.write(held);
}

// The words of the gradient: a row where there is one, else zeros.
inline void fill(hls::stream<Row> &rows, Span span, hls::stream<word> &dense) {
    Row next = rows.read();
    NEARFIELD_PASSES(LOOP_FILL, span.words);
fill_words:
    for (std::uint32_t at = 0; at < span.words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        word out;
        for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
            set_lane(out, index, next.at == at ? lane(next.lanes, index) : 0);
        }
        if (next.at == at) {
            next = rows.read();
        }
        dense.write(out);
    }
}

} // namespace nearfield

#endif
