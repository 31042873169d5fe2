// Number formats of 16 bits, in integer arithmetic: the same bits as the CPU's conversions.
#ifndef NEARFIELD_FORMATS_HPP
#define NEARFIELD_FORMATS_HPP

#include "word.hpp"

namespace nearfield {

// Number formats, as the host names them.
const std::uint32_t FORMAT_NONE = 0;
const std::uint32_t FORMAT_FP32 = 1;
const std::uint32_t FORMAT_FP16 = 2;
const std::uint32_t FORMAT_BF16 = 3;

inline bool is_narrow(std::uint32_t format) {
#pragma HLS INLINE
    return format == FORMAT_FP16 || format == FORMAT_BF16;
}

// fp16 to fp32, exact. A NaN becomes quiet.
inline std::uint32_t from_fp16(std::uint32_t half) {
#pragma HLS INLINE
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    std::uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1f) {
        const std::uint32_t quiet = fraction != 0 ? 0x00400000u : 0;
        return sign | 0x7f800000u | quiet | (fraction << 13);
    }
    if (exponent != 0) {
        return sign | ((exponent + 112) << 23) | (fraction << 13);
    }
    if (fraction == 0) {
        return sign;
    }
    // Subnormal: the leading one is moved to its place.
    std::uint32_t shift = 0;
    for (int bit = 0; bit < 10; bit++) {
#pragma HLS UNROLL
        if ((fraction & 0x400u) == 0) {
            fraction <<= 1;
            shift++;
        }
    }
    return sign | ((113 - shift) << 23) | ((fraction & 0x3ffu) << 13);
}

// fp32 to fp16, to the nearest, ties to even. A NaN becomes quiet and keeps the upper bits of its payload.
inline std::uint32_t to_fp16(std::uint32_t bits) {
#pragma HLS INLINE
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t exponent = (bits >> 23) & 0xffu;
    const std::uint32_t fraction = bits & 0x7fffffu;
    if (exponent == 0xff) {
        return sign | 0x7c00u | (fraction != 0 ? 0x200u | (fraction >> 13) : 0);
    }
    if (exponent >= 143) {
        return sign | 0x7c00u;
    }
    if (exponent >= 113) {
        const std::uint32_t kept = ((exponent - 112) << 10) | (fraction >> 13);
        const std::uint32_t rest = fraction & 0x1fffu;
        const std::uint32_t up = rest > 0x1000u || (rest == 0x1000u && (kept & 1) != 0) ? 1 : 0;
        return sign | (kept + up);
    }
    if (exponent < 102) {
        return sign;
    }
    // Subnormal: the fraction with its leading one, shifted to units of 2^-24.
    const std::uint32_t whole = fraction | 0x800000u;
    const std::uint32_t shift = 126 - exponent;
    const std::uint32_t kept = whole >> shift;
    const std::uint32_t rest = whole & ((1u << shift) - 1);
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
    return sign | (kept + up);
}

// fp32 to bfloat16 with what is added to the lower half before it is cut off. A NaN is cut and made quiet.
inline std::uint32_t to_bf16(std::uint32_t bits, std::uint32_t added) {
#pragma HLS INLINE
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return nan ? (bits >> 16) | 0x40u : (bits + added) >> 16;
}

// What is added to round to the nearest, ties to even.
inline std::uint32_t nearest_bf16(std::uint32_t bits) {
#pragma HLS INLINE
    return 0x7fffu + ((bits >> 16) & 1u);
}

// The random bits of element `counter` in an optimizer step: the lower 16 round the first moment, the upper 16 the second.
inline std::uint32_t dither_bits(std::uint32_t counter, std::uint32_t key0, std::uint32_t key1) {
#pragma HLS INLINE
    std::uint32_t bits = counter ^ key0;
    bits = ((bits ^ (bits >> 16)) * 0x7feb352du) ^ key1;
    bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
    return bits ^ (bits >> 16);
}

} // namespace nearfield

#endif
