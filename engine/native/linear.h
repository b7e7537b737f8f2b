// Linear: y = x W^T + b over a weight that is packed into panels once.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "product.h"
#include "team.h"

namespace tidegate {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free>;

// Large buffers ask for huge pages: a processor reads ahead within a page only, and weights
// are read from end to end in every step.
template <class T>
Buffer<T> allocate(size_t count) {
    constexpr size_t HUGE = size_t{1} << 21;
    const size_t bytes = std::max<size_t>(count * sizeof(T), 1);
    const size_t align = bytes < HUGE ? 64 : HUGE;
    void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
    if (memory == nullptr) throw std::bad_alloc();
    if (align == HUGE) madvise(memory, bytes, MADV_HUGEPAGE);
    return Buffer<T>(static_cast<T*>(memory));
}

// Rows [count][words] of activations.
struct Rows {
    const Word* data;
    int count;
    int words;
};

template <class E>
class Linear {
  public:
    // Room for the outputs of one or more weights, all zero at first; inputs are a whole
    // number of words.
    Linear(int columns, int inputs)
        : panels_((columns + LANES - 1) / LANES),
          words_(inputs / E::PER_WORD),
          data_(allocate<Word>(static_cast<size_t>(panels_) * words_ * LANES)),
          bias_(static_cast<size_t>(panels_) * LANES, 0.0f) {
        std::memset(data_.get(), 0, static_cast<size_t>(panels_) * words_ * LANES * sizeof(Word));
    }

    int panels() const { return panels_; }
    int words() const { return words_; }

    // Fill a panel with `count` rows of a weight [outputs][inputs], and their biases if any.
    void set(int panel, const typename E::Storage* weight, int inputs, int count,
             const float* bias) {
        Word* to = data_.get() + static_cast<size_t>(panel) * words_ * LANES;
        for (int k = 0; k < words_; ++k)
            for (int lane = 0; lane < count; ++lane)
                std::memcpy(&to[k * LANES + lane],
                            weight + static_cast<size_t>(lane) * inputs + k * E::PER_WORD,
                            sizeof(Word));
        if (bias == nullptr) return;
        biased_ = true;
        std::copy_n(bias, count, &bias_[panel * LANES]);
    }

    // Call done(first_row, rows, first_panel, panels, tile) for each tile of x W^T + b.
    template <class Done>
    void run(Team& team, const Rows& x, const Done& done) const {
        const int groups = (panels_ + TILE_PANELS - 1) / TILE_PANELS;
        const int blocks = (x.count + BLOCK_ROWS - 1) / BLOCK_ROWS;
        team.run(groups * blocks, [&](int task, int) {
            // Tasks that run side by side share rows and differ in panels.
            const int first_panel = task % groups * TILE_PANELS;
            const int panels = std::min(TILE_PANELS, panels_ - first_panel);
            const int begin = task / groups * BLOCK_ROWS;
            const int end = std::min(begin + BLOCK_ROWS, x.count);
            const Word* panel[TILE_PANELS];
            for (int p = 0; p < panels; ++p)
                panel[p] = data_.get() + static_cast<size_t>(first_panel + p) * words_ * LANES;
            const int height = tile_height(end - begin);
            for (int r = begin; r < end; r += height) {
                const int rows = std::min(height, end - r);
                const Word* row[TILE_ROWS];
                for (int i = 0; i < rows; ++i)
                    row[i] = x.data + static_cast<size_t>(r + i) * words_;
                Tile tile;
                // Whoever is free takes the next task: most likely this thread.
                const int tile_number = (r - begin) / height;
                const int ahead = std::min(first_panel + TILE_PANELS * team.threads() +
                                               tile_number % TILE_PANELS, panels_ - 1);
                multiply<E>(row, rows, panel, panels, words_, tile,
                            data_.get() + static_cast<size_t>(ahead) * words_ * LANES);
                for (int i = 0; biased_ && i < rows; ++i)
                    for (int p = 0; p < panels; ++p) {
                        float* at = &tile.at[i][p * LANES];
                        const float* bias = &bias_[(first_panel + p) * LANES];
                        _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), _mm512_loadu_ps(bias)));
                    }
                done(r, rows, first_panel, panels, tile);
            }
        });
    }

  private:
    // Rows that a task takes: their activations stay in the second-level cache.
    static constexpr int BLOCK_ROWS = 96;

    int panels_;
    int words_;
    Buffer<Word> data_;
    bool biased_ = false;
    std::vector<float> bias_;
};

}  // namespace tidegate
