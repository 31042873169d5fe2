// Test bench of the kernels, for a C++ compiler alone, for Xilinx's open headers, and for the C simulation of Vitis HLS: runs
// them on random numbers and compares every bit with plain loops.
#include "../kernels/kernels.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using nearfield::word;

namespace {

const std::uint32_t ADAMW = 1, ADAM = 2, ADAGRAD = 3, SGD_MOMENTUM = 4;
const std::uint32_t FP32 = 1, FP16 = 2;

// Numbers in words, as the kernels see them.
struct Array {
    std::vector<word> words;
    explicit Array(std::size_t lanes) : words(lanes / nearfield::LANES + 2) {
        for (std::size_t at = 0; at < words.size() * nearfield::LANES; at++) {
            set(at, 0);
        }
    }
    std::uint32_t get(std::size_t at) const {
        return nearfield::lane(words[at / nearfield::LANES], int(at % nearfield::LANES));
    }
    void set(std::size_t at, std::uint32_t bits) {
        nearfield::set_lane(words[at / nearfield::LANES], int(at % nearfield::LANES), bits);
    }
    float number(std::size_t at) const { return nearfield::as_float(get(at)); }
};

std::uint64_t state = 1;
float number(float scale) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (float(state >> 40) / 8388608.0f - 1.0f) * scale;
}

struct Weighted {
    std::uint64_t sum = 0;
    void add(std::uint64_t place, std::uint32_t bits) { sum += std::uint64_t(bits) * std::uint32_t(2 * place + 1); }
};

int failures = 0;
void expect(bool right, const char *what, std::uint64_t at) {
    if (!right && failures++ < 10) {
        std::printf("differs: %s at %llu\n", what, (unsigned long long)at);
    }
}

// One launch on `elements` elements, all of which count, with a dense gradient or with every `stride`-th pair.
void check(std::uint32_t rule, std::uint32_t elements, std::uint32_t stride) {
    const std::uint32_t padded = (elements + 31) / 32 * 32;
    Array gradient(padded), param(padded), exp_avg(padded), exp_avg_sq(padded), weights(padded);
    Array indices(padded), values(padded), bounds(padded / 65536 + 32), result(16), found(16);
    std::vector<float> g(elements, 0.0f), p(elements), m(elements), v(elements);
    Weighted gradient_in, param_in, index_sum, param_out;
    std::uint32_t pairs = 0;
    for (std::uint32_t at = 0; at < elements; at++) {
        const float fresh = number(1.0f);
        if (stride == 0 || at % stride == 0) {
            g[at] = fresh;
        }
        p[at] = number(8.0f);
        m[at] = number(0.1f);
        v[at] = std::fabs(number(0.01f));
        gradient.set(at, nearfield::as_bits(g[at]));
        param.set(at, nearfield::as_bits(p[at]));
        exp_avg.set(at, nearfield::as_bits(m[at]));
        exp_avg_sq.set(at, nearfield::as_bits(v[at]));
        param_in.add(at, nearfield::as_bits(p[at]));
        if (stride == 0) {
            gradient_in.add(at, nearfield::as_bits(g[at]));
        } else if (at % stride == 0) {
            gradient_in.add(pairs, nearfield::as_bits(g[at]));
            index_sum.add(pairs, at);
            indices.set(pairs, at);
            values.set(pairs++, nearfield::as_bits(g[at]));
        }
    }
    const float unscale = 0.5f, beta1 = 0.9f, beta2 = 0.999f, root = 1.5f, alpha = -0.01f, eps = 1e-8f;
    const float omega = rule == ADAMW ? 0.999f : 1.0f, decay = rule == ADAMW ? 0.0f : 0.01f;
    const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    const bool first = rule != ADAGRAD, second = rule != SGD_MOMENTUM;
    word *const m_words = first ? exp_avg.words.data() : nullptr;
    word *const v_words = second ? exp_avg_sq.words.data() : nullptr;
    if (stride == 0) {
        update(gradient.words.data(), param.words.data(), m_words, v_words, param.words.data(), m_words, v_words,
               weights.words.data(), result.words.data(), 0, padded, 0, elements, 0, 0, rule, FP32, FP32, FP16, 0, 0,
               unscale, beta1, rest1, beta2, rest2, root, alpha, eps, omega, decay);
    } else {
        check_pairs(indices.words.data(), bounds.words.data(), found.words.data(), pairs, padded);
        expect((std::uint64_t(found.get(1)) << 32 | found.get(0)) == index_sum.sum, "sum of indices", 0);
        expect(found.get(2) == 0xffffffffu, "order of indices", found.get(2));
        update_topk(indices.words.data(), values.words.data(), bounds.words.data(), param.words.data(), m_words, v_words,
                    param.words.data(), m_words, v_words, weights.words.data(), result.words.data(), 0, padded, 0,
                    elements, 0, 0, rule, FP32, FP16, 0, 0, unscale, beta1, rest1, beta2, rest2, root, alpha, eps, omega,
                    decay);
    }
    for (std::uint32_t at = 0; at < elements; at++) {
        const float g0 = g[at] * unscale;
        const float decayed = g0 + decay * p[at];
        const float g1 = rule == ADAMW ? g0 : decayed;
        float change;
        if (rule == ADAGRAD) {
            v[at] = g1 * g1 + v[at];
            change = g0 / (std::sqrt(v[at]) + eps) * alpha;
        } else {
            const float square = g1 * g1 * rest2;
            const float old = v[at] * beta2;
            v[at] = second ? square + old : v[at];
            m[at] = g1 * rest1 + m[at] * beta1;
            change = second ? m[at] / (std::sqrt(v[at]) * root + eps) * alpha : m[at] * alpha;
        }
        p[at] = (rule == ADAMW ? omega * p[at] : p[at]) + change;
        expect(param.get(at) == nearfield::as_bits(p[at]), "param", at);
        expect(!first || exp_avg.get(at) == nearfield::as_bits(m[at]), "exp_avg", at);
        expect(!second || exp_avg_sq.get(at) == nearfield::as_bits(v[at]), "exp_avg_sq", at);
        param_out.add(at, nearfield::as_bits(p[at]));
    }
    const std::uint64_t sums[4] = {gradient_in.sum, param_in.sum, 0, 0};
    for (int sum = 0; sum < 2; sum++) {
        expect((std::uint64_t(result.get(2 * sum + 1)) << 32 | result.get(2 * sum)) == sums[sum], "sum", sum);
    }
    expect((std::uint64_t(result.get(9)) << 32 | result.get(8)) == param_out.sum, "sum of param", 4);
    const std::uint64_t counted = stride == 0 ? elements : pairs;
    expect((std::uint64_t(result.get(15)) << 32 | result.get(14)) == counted, "count", counted);
}

} // namespace

extern "C" void nearfield_count(int, std::uint64_t) {}

int main() {
    const std::uint32_t sizes[] = {1, 15, 16, 17, 1023, 1024, 65535, 65536, 65537, 140000};
    const std::uint32_t strides[] = {0, 1, 3, 100, 100000};
    int cases = 0;
    for (std::uint32_t rule = ADAMW; rule <= SGD_MOMENTUM; rule++) {
        for (std::uint32_t elements : sizes) {
            for (std::uint32_t stride : strides) {
                check(rule, elements, stride);
                cases++;
            }
        }
    }
    (void)ADAM;
    std::printf("%d launches, %d differences\n", cases, failures);
    return failures == 0 ? 0 : 1;
}
