// Kernel `update`: an update rule on a run of a subgroup, with a dense gradient.
#include "kernels.hpp"
#include "region.hpp"

using namespace nearfield;

namespace {

// The gradient of a pass, and how many elements count.
void count_elements(Span span, hls::stream<std::uint64_t> &counted) {
    const Active active = active_in(span, span.first, span.words * LANES);
    counted.write(active.high > active.low ? active.high - active.low : 0);
}

void pass(const word *gradient, const word *param_in, const word *exp_avg_in, const word *exp_avg_sq_in, word *param_out,
          word *exp_avg_out, word *exp_avg_sq_out, word *weights_out, word *result, Launch launch, Scalars scalars,
          Span span) {
#pragma HLS DATAFLOW
    hls::stream<word> raw_gradient("raw_gradient"), dense("dense");
    hls::stream<std::uint64_t> gradient_sums, counted;
    load<LOOP_LOAD_GRADIENT>(gradient, span, launch.gradient_format, raw_gradient);
    unpack<LOOP_UNPACK_GRADIENT>(raw_gradient, span, launch.gradient_format, dense, gradient_sums);
    count_elements(span, counted);
    NEARFIELD_REGION(launch, span, dense, gradient_sums, counted)
}

} // namespace

extern "C" void update(const word *gradient, const word *param_in, const word *exp_avg_in, const word *exp_avg_sq_in,
                       word *param_out, word *exp_avg_out, word *exp_avg_sq_out, word *weights_out, word *result,
                       std::uint64_t start, std::uint64_t elements, std::uint64_t begin, std::uint64_t end,
                       std::uint64_t first_element, std::uint64_t origin, std::uint32_t rule,
                       std::uint32_t gradient_format, std::uint32_t moment_format, std::uint32_t weights_format,
                       std::uint32_t key0, std::uint32_t key1, float unscale, float beta1, float one_minus_beta1,
                       float beta2, float one_minus_beta2, float bias_root, float alpha, float eps, float omega,
                       float decay) {
#pragma HLS INTERFACE m_axi port = gradient bundle = gradient offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = param_in bundle = param_in offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_in bundle = exp_avg_in offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_sq_in bundle = exp_avg_sq_in offset = slave max_read_burst_length = 64 num_read_outstanding = 16
#pragma HLS INTERFACE m_axi port = param_out bundle = param_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_out bundle = exp_avg_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = exp_avg_sq_out bundle = exp_avg_sq_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = weights_out bundle = weights_out offset = slave max_write_burst_length = 64 num_write_outstanding = 16
#pragma HLS INTERFACE m_axi port = result bundle = result offset = slave
    const Launch launch = {start, elements, begin, end, first_element, origin, rule, gradient_format, moment_format,
                           weights_format, key0, key1};
    const Scalars scalars = {unscale, beta1, one_minus_beta1, beta2, one_minus_beta2, bias_root, alpha, eps, omega, decay};
    const std::uint32_t count = passes(launch);
chunks:
    for (std::uint32_t number = 0; number < count; number++) {
        pass(gradient, param_in, exp_avg_in, exp_avg_sq_in, param_out, exp_avg_out, exp_avg_sq_out, weights_out, result,
             launch, scalars, span_of(launch, number, count));
    }
}
