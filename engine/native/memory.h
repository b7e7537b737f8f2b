// Memory for vectors and tiles: aligned to cache lines, and in huge pages where it is much.
//
// A processor reads ahead within a page only, and finds few pages without looking them up;
// weights are read from end to end in every step.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace tidegate {

// Hands out memory that is all zero, and keeps it until its own end.
class Arena {
  public:
    static constexpr size_t SMALL = size_t{1} << 16;
    static constexpr size_t HUGE = size_t{1} << 21;

    // `chunk`: bytes that are taken from the system at once; what is not used of them stays there.
    explicit Arena(size_t chunk) : chunk_(chunk) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena() { clear(); }

    // Room for `count` elements; throws std::bad_alloc.
    template <class T>
    T* take(size_t count) {
        const size_t bytes = (count * sizeof(T) + LINE - 1) / LINE * LINE;
        if (bytes > left_) grow(bytes);
        left_ -= bytes;
        return reinterpret_cast<T*>(std::exchange(next_, next_ + bytes));
    }

    // Take back all that was handed out.
    void clear() {
        for (const Chunk& chunk : chunks_) munmap(chunk.start, chunk.bytes);
        chunks_.clear();
        left_ = 0;
    }

  private:
    static constexpr size_t LINE = 64;

    struct Chunk {
        void* start;
        size_t bytes;
    };

    void grow(size_t bytes) {
        size_t whole = std::max(bytes, chunk_);
        size_t margin = 0;
        if (whole >= HUGE) {
            whole = (whole + HUGE - 1) / HUGE * HUGE;
            margin = HUGE;  // to begin where a page does
        }
        chunks_.reserve(chunks_.size() + 1);
        void* start = mmap(nullptr, whole + margin, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) throw std::bad_alloc();
        chunks_.push_back({start, whole + margin});
        left_ = whole;
        next_ = static_cast<std::byte*>(start);
        if (margin == 0) return;
        next_ += (HUGE - reinterpret_cast<size_t>(start) % HUGE) % HUGE;
        madvise(next_, whole, MADV_HUGEPAGE);
    }

    size_t chunk_;
    std::vector<Chunk> chunks_;
    std::byte* next_ = nullptr;
    size_t left_ = 0;
};

}  // namespace tidegate
