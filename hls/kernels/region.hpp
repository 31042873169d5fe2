// One pass of the dataflow region, whatever the gradient's source, and the result word of a launch.
#ifndef NEARFIELD_REGION_HPP
#define NEARFIELD_REGION_HPP

#include "arithmetic.hpp"
#include "process.hpp"

namespace nearfield {

// Sums of a pass, in the order of the result word.
struct Sums {
    std::uint64_t of[7];
};

// What a launch of an update kernel works on.
struct Launch {
    std::uint64_t start;         // first element of the buffers that is touched, a multiple of 32
    std::uint64_t elements;      // how many, a multiple of 32
    std::uint64_t begin;         // elements that count
    std::uint64_t end;
    std::uint64_t first_element; // place of the buffers' first element in the subgroup, a multiple of 32
    std::uint64_t origin;        // place of the subgroup in the flat vector
    std::uint32_t rule;
    std::uint32_t gradient_format;
    std::uint32_t moment_format;
    std::uint32_t weights_format;
    std::uint32_t key0;
    std::uint32_t key1;
};

// Number of passes: chunks lie on a grid that begins with the subgroup.
inline std::uint32_t passes(const Launch &launch) {
#pragma HLS INLINE
    const std::uint64_t first = launch.first_element + launch.start;
    const std::uint64_t end = first + launch.elements;
    return launch.elements == 0
               ? 0
               : std::uint32_t((end + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS - first / CHUNK_ELEMENTS);
}

inline Span span_of(const Launch &launch, std::uint32_t pass, std::uint32_t count) {
#pragma HLS INLINE
    const std::uint64_t first = launch.first_element + launch.start;
    const std::uint64_t chunk = first / CHUNK_ELEMENTS + pass;
    const std::uint64_t from = pass == 0 ? first : chunk * CHUNK_ELEMENTS;
    const std::uint64_t to = pass + 1 == count ? first + launch.elements : (chunk + 1) * CHUNK_ELEMENTS;
    Span span;
    span.first = from - launch.first_element;
    span.words = std::uint32_t(to - from) / LANES;
    span.begin = launch.begin;
    span.end = launch.end;
    span.place = launch.first_element;
    span.is_first = pass == 0;
    span.is_last = pass + 1 == count;
    return span;
}

inline Rounding rounding_of(const Launch &launch, const Span &span, bool dithered, std::uint32_t shift) {
#pragma HLS INLINE
    Rounding rounding;
    rounding.dithered = dithered;
    rounding.copies = (launch.rule & COPY) != 0;
    rounding.counter = std::uint32_t(launch.origin + span.place + span.first);
    rounding.key0 = launch.key0;
    rounding.key1 = launch.key1;
    rounding.shift = shift;
    return rounding;
}

// Adds up the sums of all passes; after the last one writes the result word: seven checksums (gradient, master weights and
// moments as read, the three as written) and what the launch counted, for update the elements, for update_topk the pairs.
inline void collect(hls::stream<std::uint64_t> &gradient, hls::stream<std::uint64_t> &param_in,
                    hls::stream<std::uint64_t> &exp_avg_in, hls::stream<std::uint64_t> &exp_avg_sq_in,
                    hls::stream<std::uint64_t> &param_out, hls::stream<std::uint64_t> &exp_avg_out,
                    hls::stream<std::uint64_t> &exp_avg_sq_out, hls::stream<std::uint64_t> &weights,
                    hls::stream<std::uint64_t> &counted, Span span, word *result) {
    NEARFIELD_STATE std::uint64_t total[8];
#pragma HLS ARRAY_PARTITION variable = total complete
    const std::uint64_t fresh[8] = {gradient.read(),    param_in.read(),       exp_avg_in.read(),
                                    exp_avg_sq_in.read(), param_out.read(),    exp_avg_out.read(),
                                    exp_avg_sq_out.read(), counted.read()};
    // The weights' copy has no checksum: it does not lie on a drive.
    weights.read();
    for (int index = 0; index < 8; index++) {
#pragma HLS UNROLL
        total[index] = (span.is_first ? 0 : total[index]) + fresh[index];
    }
    if (span.is_last) {
        word out;
        for (int index = 0; index < 8; index++) {
#pragma HLS UNROLL
            set_lane(out, 2 * index, std::uint32_t(total[index]));
            set_lane(out, 2 * index + 1, std::uint32_t(total[index] >> 32));
        }
        result[0] = out;
    }
}

} // namespace nearfield

// Declares the queues of the region behind the gradient's source, and calls its processes. A macro, since Vitis HLS wants
// the processes of a dataflow region in one function body.
#define NEARFIELD_REGION(launch, span, gradient, gradient_sums, counted)                                                   \
    hls::stream<word> raw_param("raw_param"), raw_exp_avg("raw_exp_avg"), raw_exp_avg_sq("raw_exp_avg_sq");                \
    hls::stream<word> old_param("old_param"), old_exp_avg("old_exp_avg"), old_exp_avg_sq("old_exp_avg_sq");                \
    hls::stream<word> new_param("new_param"), new_exp_avg("new_exp_avg"), new_exp_avg_sq("new_exp_avg_sq");                \
    hls::stream<word> new_weights("new_weights"), packed_param("packed_param"), packed_exp_avg("packed_exp_avg");          \
    hls::stream<word> packed_exp_avg_sq("packed_exp_avg_sq"), packed_weights("packed_weights");                            \
    hls::stream<std::uint64_t> param_in_sums, exp_avg_in_sums, exp_avg_sq_in_sums;                                         \
    hls::stream<std::uint64_t> param_out_sums, exp_avg_out_sums, exp_avg_sq_out_sums, weights_sums;                        \
    _Pragma("HLS STREAM variable = raw_param depth = 64") \
    _Pragma("HLS STREAM variable = raw_exp_avg depth = 64") \
    _Pragma("HLS STREAM variable = raw_exp_avg_sq depth = 64") \
    _Pragma("HLS STREAM variable = old_param depth = 64") \
    _Pragma("HLS STREAM variable = old_exp_avg depth = 64") \
    _Pragma("HLS STREAM variable = old_exp_avg_sq depth = 64") \
    _Pragma("HLS STREAM variable = new_param depth = 64") \
    _Pragma("HLS STREAM variable = new_exp_avg depth = 64") \
    _Pragma("HLS STREAM variable = new_exp_avg_sq depth = 64") \
    _Pragma("HLS STREAM variable = new_weights depth = 64") \
    _Pragma("HLS STREAM variable = packed_param depth = 64") \
    _Pragma("HLS STREAM variable = packed_exp_avg depth = 64") \
    _Pragma("HLS STREAM variable = packed_exp_avg_sq depth = 64") \
    _Pragma("HLS STREAM variable = packed_weights depth = 64") \
    const std::uint32_t exp_avg_format = keeps_exp_avg(launch.rule) ? launch.moment_format : FORMAT_NONE;                  \
    const std::uint32_t exp_avg_sq_format = keeps_exp_avg_sq(launch.rule) ? launch.moment_format : FORMAT_NONE;            \
    load<LOOP_LOAD_PARAM>(param_in, span, FORMAT_FP32, raw_param);                                                         \
    load<LOOP_LOAD_EXP_AVG>(exp_avg_in, span, exp_avg_format, raw_exp_avg);                                                \
    load<LOOP_LOAD_EXP_AVG_SQ>(exp_avg_sq_in, span, exp_avg_sq_format, raw_exp_avg_sq);                                    \
    unpack<LOOP_UNPACK_PARAM>(raw_param, span, FORMAT_FP32, old_param, param_in_sums);                                     \
    unpack<LOOP_UNPACK_EXP_AVG>(raw_exp_avg, span, exp_avg_format, old_exp_avg, exp_avg_in_sums);                          \
    unpack<LOOP_UNPACK_EXP_AVG_SQ>(raw_exp_avg_sq, span, exp_avg_sq_format, old_exp_avg_sq, exp_avg_sq_in_sums);           \
    compute(gradient, old_param, old_exp_avg, old_exp_avg_sq, span, launch.rule, scalars, new_param, new_exp_avg,          \
            new_exp_avg_sq, new_weights);                                                                                  \
    pack<LOOP_PACK_PARAM>(new_param, span, FORMAT_FP32, rounding_of(launch, span, false, 0), packed_param,                 \
                          param_out_sums);                                                                                 \
    pack<LOOP_PACK_EXP_AVG>(new_exp_avg, span, exp_avg_format, rounding_of(launch, span, true, 0), packed_exp_avg,         \
                            exp_avg_out_sums);                                                                             \
    pack<LOOP_PACK_EXP_AVG_SQ>(new_exp_avg_sq, span, exp_avg_sq_format, rounding_of(launch, span, true, 16),               \
                               packed_exp_avg_sq, exp_avg_sq_out_sums);                                                    \
    pack<LOOP_PACK_WEIGHTS>(new_weights, span, launch.weights_format, rounding_of(launch, span, false, 0),                 \
                            packed_weights, weights_sums);                                                                 \
    store<LOOP_STORE_PARAM>(packed_param, span, FORMAT_FP32, param_out);                                                   \
    store<LOOP_STORE_EXP_AVG>(packed_exp_avg, span, exp_avg_format, exp_avg_out);                                          \
    store<LOOP_STORE_EXP_AVG_SQ>(packed_exp_avg_sq, span, exp_avg_sq_format, exp_avg_sq_out);                              \
    store<LOOP_STORE_WEIGHTS>(packed_weights, span, launch.weights_format, weights_out);                                   \
    collect(gradient_sums, param_in_sums, exp_avg_in_sums, exp_avg_sq_in_sums, param_out_sums, exp_avg_out_sums,           \
            exp_avg_sq_out_sums, weights_sums, counted, span, result);

#endif
