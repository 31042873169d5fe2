// Kernel `check_pairs`: checks the indices of a compressed gradient before they are used, and finds where chunks begin.
#include "kernels.hpp"
#include "checksum.hpp"
#include "loops.hpp"

using namespace nearfield;

namespace {

const std::uint32_t NO_PLACE = 0xffffffffu;

void load_indices(const word *indices, std::uint32_t words, hls::stream<word> &to_check, hls::stream<word> &to_find) {
    NEARFIELD_PASSES(LOOP_LOAD_INDICES, words);
load_index_words:
    for (std::uint32_t at = 0; at < words; at++) {
#pragma HLS PIPELINE II = 1
        const word fresh = indices[at];
        to_check.write(fresh);
        to_find.write(fresh);
    }
}

// Sums the indices, and finds the first that does not ascend or lies outside the subgroup.
void check(hls::stream<word> &in, std::uint32_t words, std::uint32_t pairs, std::uint64_t elements, word *result) {
    std::uint64_t sum = 0;
    std::uint32_t bad = NO_PLACE;
    std::uint32_t last = 0;
    NEARFIELD_PASSES(LOOP_CHECK, words);
check_words:
    for (std::uint32_t at = 0; at < words; at++) {
#pragma HLS PIPELINE II = 1
        const word fresh = in.read();
        word masked;
        std::uint32_t first_bad = LANES;
        for (int index = LANES - 1; index >= 0; index--) {
#pragma HLS UNROLL
            const std::uint32_t place = at * LANES + index;
            const std::uint32_t element = lane(fresh, index);
            const std::uint32_t before = index > 0 ? lane(fresh, index > 0 ? index - 1 : 0) : last;
            const bool exists = place < pairs;
            const bool wrong = (place > 0 && element <= before) || element >= elements;
            first_bad = exists && wrong ? index : first_bad;
            set_lane(masked, index, exists ? element : 0);
        }
        if (bad == NO_PLACE && first_bad < LANES) {
            bad = at * LANES + first_bad;
        }
        last = lane(fresh, LANES - 1);
        sum += weighted(masked, std::uint64_t(at) * LANES);
    }
    word out;
    for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
        set_lane(out, index, 0);
    }
    set_lane(out, 0, std::uint32_t(sum));
    set_lane(out, 1, std::uint32_t(sum >> 32));
    set_lane(out, 2, bad);
    set_lane(out, 3, pairs);
    result[0] = out;
}

// Finds for each chunk how many pairs lie before it. A pass takes a word of indices or gives an entry of the table.
void find_bounds(hls::stream<word> &in, std::uint32_t words, std::uint32_t pairs, std::uint32_t entries,
                 hls::stream<word> &table) {
    word held;
    word gathered;
    std::uint32_t read = 0;
    std::uint32_t entry = 0;
    bool empty = true;
    const std::uint32_t total = words + entries;
    NEARFIELD_PASSES(LOOP_BOUNDS, total);
bounds:
    for (std::uint32_t at = 0; at < total; at++) {
#pragma HLS PIPELINE II = 1
        if (empty && read < words) {
            held = in.read();
            empty = false;
        }
        // Pairs of the held word that lie before this entry's chunk.
        std::uint32_t before = 0;
        std::uint32_t exist = 0;
        for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
            const bool exists = !empty && read * LANES + index < pairs;
            exist += exists ? 1 : 0;
            before += exists && lane(held, index) / CHUNK_ELEMENTS < entry ? 1 : 0;
        }
        const bool take = !empty && (entry == entries || before == exist);
        if (take) {
            empty = true;
            read++;
        } else {
            for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
                if (index == int(entry % LANES)) {
                    set_lane(gathered, index, (read < words ? read * LANES : pairs) + before);
                }
            }
            if (entry % LANES == LANES - 1 || entry + 1 == entries) {
                table.write(gathered);
            }
            entry++;
        }
    }
}

void store_bounds(hls::stream<word> &table, std::uint32_t words, word *bounds) {
    NEARFIELD_PASSES(LOOP_STORE_BOUNDS, words);
store_bound_words:
    for (std::uint32_t at = 0; at < words; at++) {
#pragma HLS PIPELINE II = 1
        bounds[at] = table.read();
    }
}

void run(const word *indices, word *bounds, word *result, std::uint32_t pairs, std::uint64_t elements) {
#pragma HLS DATAFLOW
    hls::stream<word> to_check("to_check"), to_find("to_find"), table("table");
#pragma HLS STREAM variable = to_check depth = 64
#pragma HLS STREAM variable = to_find depth = 64
    const std::uint32_t words = pairs / LANES + (pairs % LANES != 0 ? 1 : 0);
    const std::uint32_t entries = std::uint32_t((elements + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS) + 1;
    load_indices(indices, words, to_check, to_find);
    check(to_check, words, pairs, elements, result);
    find_bounds(to_find, words, pairs, entries, table);
    store_bounds(table, (entries + LANES - 1) / LANES, bounds);
}

} // namespace

extern "C" void check_pairs(const word *indices, word *bounds, word *result, std::uint32_t pairs, std::uint64_t elements) {
#pragma HLS INTERFACE m_axi port = indices bundle = pairs_index offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = bounds bundle = bounds offset = slave
#pragma HLS INTERFACE m_axi port = result bundle = result offset = slave
    run(indices, bounds, result, pairs, elements);
}
