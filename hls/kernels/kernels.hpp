// The kernels' signatures.
#ifndef NEARFIELD_KERNELS_HPP
#define NEARFIELD_KERNELS_HPP

#include "word.hpp"

extern "C" void update(const nearfield::word *gradient, const nearfield::word *param_in, const nearfield::word
                        *exp_avg_in, const nearfield::word *exp_avg_sq_in, nearfield::word *param_out, nearfield::word
                        *exp_avg_out, nearfield::word *exp_avg_sq_out, nearfield::word *weights_out, nearfield::word
                        *result, std::uint64_t start, std::uint64_t elements, std::uint64_t begin, std::uint64_t end,
                        std::uint64_t first_element, std::uint64_t origin, std::uint32_t rule, std::uint32_t
                        gradient_format, std::uint32_t moment_format, std::uint32_t weights_format, std::uint32_t key0,
                        std::uint32_t key1, float unscale, float beta1, float one_minus_beta1, float beta2, float
                        one_minus_beta2, float bias_root, float alpha, float eps, float omega, float decay);

extern "C" void update_topk(const nearfield::word *indices, const nearfield::word *values, const nearfield::word
                        *bounds, const nearfield::word *param_in, const nearfield::word *exp_avg_in, const
                        nearfield::word *exp_avg_sq_in, nearfield::word *param_out, nearfield::word *exp_avg_out,
                        nearfield::word *exp_avg_sq_out, nearfield::word *weights_out, nearfield::word *result,
                        std::uint64_t start, std::uint64_t elements, std::uint64_t begin, std::uint64_t end,
                        std::uint64_t first_element, std::uint64_t origin, std::uint32_t rule, std::uint32_t
                        moment_format, std::uint32_t weights_format, std::uint32_t key0, std::uint32_t key1, float
                        unscale, float beta1, float one_minus_beta1, float beta2, float one_minus_beta2, float
                        bias_root, float alpha, float eps, float omega, float decay);

extern "C" void check_pairs(const nearfield::word *indices, nearfield::word *bounds, nearfield::word *result,
                        std::uint32_t pairs, std::uint64_t elements);

#endif
