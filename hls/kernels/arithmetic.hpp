// The update rules. One set of operators serves them all; the order of operations is that of the CPU's kernels, in fp32
// and without fused multiply-add (Smart-Infinity, section 5).
#ifndef NEARFIELD_ARITHMETIC_HPP
#define NEARFIELD_ARITHMETIC_HPP

#include <cmath>

#include "loops.hpp"
#include "span.hpp"

namespace nearfield {

// Update rules, as the host names them.
const std::uint32_t RULE_ADAMW = 1;
const std::uint32_t RULE_ADAM = 2;
const std::uint32_t RULE_ADAGRAD = 3;
const std::uint32_t RULE_SGD_MOMENTUM = 4;
// Added to a rule where elements go through unchanged.
const std::uint32_t COPY = 0x100;

inline std::uint32_t rule_of(std::uint32_t argument) { return argument & (COPY - 1); }
inline bool keeps_exp_avg(std::uint32_t argument) { return rule_of(argument) != RULE_ADAGRAD; }
inline bool keeps_exp_avg_sq(std::uint32_t argument) { return rule_of(argument) != RULE_SGD_MOMENTUM; }

// Scalars of a launch, prepared by the host in fp64 and rounded once.
struct Scalars {
    float unscale;
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float bias_root;
    float alpha;
    float eps;
    float omega;
    float decay;
};

struct Element {
    float param;
    float exp_avg;
    float exp_avg_sq;
};

inline Element step(std::uint32_t rule, const Scalars &s, float gradient, const Element &old) {
#pragma HLS INLINE
    const bool adagrad = rule == RULE_ADAGRAD;
    const bool momentum = rule == RULE_SGD_MOMENTUM;
    const float unscaled = gradient * s.unscale;
    // With decoupled decay nothing is added to the gradient: 0·p would turn -0 into 0.
    const float decayed = unscaled + s.decay * old.param;
    const float g = rule == RULE_ADAMW ? unscaled : decayed;
    const float square = g * g;
    const float square_part = adagrad ? square : square * s.one_minus_beta2;
    const float old_part = adagrad ? old.exp_avg_sq : old.exp_avg_sq * s.beta2;
    Element updated;
    updated.exp_avg_sq = square_part + old_part;
    updated.exp_avg = g * s.one_minus_beta1 + old.exp_avg * s.beta1;
    const float root = std::sqrt(updated.exp_avg_sq);
    const float denominator = (adagrad ? root : root * s.bias_root) + s.eps;
    // AdaGrad's numerator is the gradient without its decay term, as in the paper's kernel.
    const float quotient = (adagrad ? unscaled : updated.exp_avg) / denominator;
    const float change = (momentum ? updated.exp_avg : quotient) * s.alpha;
    updated.param = (rule == RULE_ADAMW ? s.omega * old.param : old.param) + change;
    return updated;
}

// One NaN for all, as the FPGA's operators give it; a program's pass on one of their operands.
inline std::uint32_t canonical(float value) {
#pragma HLS INLINE
    const std::uint32_t bits = as_bits(value);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

// Updates the lanes that count; the others go through.
inline void compute(hls::stream<word> &gradient, hls::stream<word> &param_in, hls::stream<word> &exp_avg_in,
                    hls::stream<word> &exp_avg_sq_in, Span span, std::uint32_t argument, Scalars scalars,
                    hls::stream<word> &param_out, hls::stream<word> &exp_avg_out,
                    hls::stream<word> &exp_avg_sq_out, hls::stream<word> &weights_out) {
    const std::uint32_t rule = rule_of(argument);
    const bool copies = (argument & COPY) != 0;
    NEARFIELD_PASSES(LOOP_COMPUTE, span.words);
compute_words:
    for (std::uint32_t at = 0; at < span.words; at++) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT max = 4096
        const word g = gradient.read();
        word p = param_in.read();
        word m = exp_avg_in.read();
        word v = exp_avg_sq_in.read();
        const Active active = active_in(span, span.first + std::uint64_t(at) * LANES, LANES);
        for (int index = 0; index < LANES; index++) {
#pragma HLS UNROLL
            Element old;
            old.param = as_float(lane(p, index));
            old.exp_avg = as_float(lane(m, index));
            old.exp_avg_sq = as_float(lane(v, index));
            const Element updated = step(rule, scalars, as_float(lane(g, index)), old);
            if (!copies && counts(active, index)) {
                set_lane(p, index, canonical(updated.param));
                set_lane(m, index, canonical(updated.exp_avg));
                set_lane(v, index, canonical(updated.exp_avg_sq));
            }
        }
        param_out.write(p);
        exp_avg_out.write(m);
        exp_avg_sq_out.write(v);
        weights_out.write(p);
    }
}

} // namespace nearfield

#endif
