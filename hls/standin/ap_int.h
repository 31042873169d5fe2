// Stand-in for the part of ap_int.h that the kernels use, so that they compile with a C++ compiler alone. Written for
// Nearfield; Vitis HLS and hls4ml bring the real header, which comes first in the include path there.
#ifndef NEARFIELD_STANDIN_AP_INT_H
#define NEARFIELD_STANDIN_AP_INT_H

#include <cstdint>

template <int BITS> struct ap_uint {
    static_assert(BITS % 32 == 0, "whole 32-bit lanes only");
    std::uint32_t lanes[BITS / 32];

    // A 32-bit lane that can be read and set, as range(hi, lo) of the real type.
    struct lane {
        std::uint32_t &bits;
        lane &operator=(std::uint32_t value) {
            bits = value;
            return *this;
        }
        unsigned to_uint() const { return bits; }
    };
    lane range(int, int low) { return lane{lanes[low / 32]}; }
    struct view {
        std::uint32_t bits;
        unsigned to_uint() const { return bits; }
    };
    view range(int, int low) const { return view{lanes[low / 32]}; }
};

#endif
