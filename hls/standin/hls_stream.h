// Stand-in for hls_stream.h, so that the kernels compile with a C++ compiler alone: a queue that grows. Written for
// Nearfield. Processes of a dataflow region run one after the other here, so a queue holds what one of them leaves.
#ifndef NEARFIELD_STANDIN_HLS_STREAM_H
#define NEARFIELD_STANDIN_HLS_STREAM_H

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace hls {

template <typename T, int DEPTH = 0> class stream {
  public:
    stream() = default;
    explicit stream(const char *) {}
    void write(const T &value) { items.push_back(value); }
    T read() {
        if (next == items.size()) {
            std::fputs("a process of a kernel reads from an empty stream\n", stderr);
            std::abort();
        }
        T value = items[next++];
        if (next == items.size()) {
            items.clear();
            next = 0;
        }
        return value;
    }
    bool empty() const { return next == items.size(); }

  private:
    stream(const stream &) = delete;
    std::vector<T> items;
    std::size_t next = 0;
};

} // namespace hls

#endif
