// Kernel `update_topk`: an update rule on a run of a subgroup, with the pairs of a compressed gradient.
#include "kernels.hpp"
#include "merge.hpp"
#include "region.hpp"

using namespace nearfield;

namespace {

void pass(const word *indices, const word *values, const word *bounds, const word *param_in, const word *exp_avg_in,
          const word *exp_avg_sq_in, word *param_out, word *exp_avg_out, word *exp_avg_sq_out, word *weights_out,
          word *result, Launch launch, Scalars scalars, Span span) {
#pragma HLS DATAFLOW
    hls::stream<Range> of_indices("of_indices"), of_values("of_values"), of_merge("of_merge");
    hls::stream<word> pair_indices("pair_indices"), pair_values("pair_values"), dense("dense");
    hls::stream<Row> parts("parts"), rows("rows");
    hls::stream<std::uint64_t> gradient_sums("gradient_sums"), counted("counted");
#pragma HLS STREAM variable = pair_indices depth = 64
#pragma HLS STREAM variable = pair_values depth = 64
#pragma HLS STREAM variable = dense depth = 64
#pragma HLS STREAM variable = parts depth = 64
#pragma HLS STREAM variable = rows depth = 64
    const std::uint32_t chunk = std::uint32_t((span.place + span.first) / CHUNK_ELEMENTS);
    find_pairs(bounds, chunk, of_indices, of_values, of_merge);
    load_pairs<LOOP_LOAD_INDICES>(indices, of_indices, pair_indices);
    load_pairs<LOOP_LOAD_VALUES>(values, of_values, pair_values);
    merge(pair_indices, pair_values, of_merge, span, parts, gradient_sums, counted);
    join(parts, rows);
    fill(rows, span, dense);
    NEARFIELD_REGION(launch, span, dense, gradient_sums, counted)
}

} // namespace

extern "C" void update_topk(const word *indices, const word *values, const word *bounds, const word *param_in,
                            const word *exp_avg_in, const word *exp_avg_sq_in, word *param_out, word *exp_avg_out,
                            word *exp_avg_sq_out, word *weights_out, word *result, std::uint64_t start,
                            std::uint64_t elements, std::uint64_t begin, std::uint64_t end, std::uint64_t first_element,
                            std::uint64_t origin, std::uint32_t rule, std::uint32_t moment_format,
                            std::uint32_t weights_format, std::uint32_t key0, std::uint32_t key1, float unscale, float beta1,
                            float one_minus_beta1, float beta2, float one_minus_beta2, float bias_root, float alpha,
                            float eps, float omega, float decay) {
#pragma HLS INTERFACE m_axi port = indices bundle = pairs_index offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = values bundle = pairs_value offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = bounds bundle = bounds offset = slave
#pragma HLS INTERFACE m_axi port = param_in bundle = param_in offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_in bundle = exp_avg_in offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_sq_in bundle = exp_avg_sq_in offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = param_out bundle = param_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_out bundle = exp_avg_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_sq_out bundle = exp_avg_sq_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = weights_out bundle = weights_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = result bundle = result offset = slave
    const Launch launch = {start, elements, begin, end, first_element, origin, rule, FORMAT_FP32, moment_format,
                           weights_format, key0, key1};
    const Scalars scalars = {unscale, beta1, one_minus_beta1, beta2, one_minus_beta2, bias_root, alpha, eps, omega, decay};
    const std::uint32_t count = passes(launch);
chunks:
    for (std::uint32_t number = 0; number < count; number++) {
        pass(indices, values, bounds, param_in, exp_avg_in, exp_avg_sq_in, param_out, exp_avg_out, exp_avg_sq_out,
             weights_out, result, launch, scalars, span_of(launch, number, count));
    }
}
