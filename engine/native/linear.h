// Linear: y = x W^T + b over a weight that is packed into panels once.
#pragma once

#include <algorithm>
#include <vector>

#include "memory.h"
#include "team.h"
#include "unit.h"

namespace tidegate {

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
    // number of words. What lies in `memory` is used as long as this is.
    Linear(Arena& memory, int columns, int inputs)
        : panels_((columns + LANES - 1) / LANES),
          words_(inputs / E::PER_WORD),
          data_(memory.take<Word>(static_cast<size_t>(panels_) * words_ * LANES)),
          bias_(static_cast<size_t>(panels_) * LANES, 0.0f) {}

    int panels() const { return panels_; }
    int words() const { return words_; }

    // Fill a panel with `count` rows of a weight [outputs][inputs], and their biases if any.
    void set(int panel, const typename E::Storage* weight, int inputs, int count,
             const float* bias) {
        Word* to = data_ + static_cast<size_t>(panel) * words_ * LANES;
        for (int k = 0; k < words_; ++k)
            for (int lane = 0; lane < count; ++lane)
                std::memcpy(&to[k * LANES + lane],
                            weight + static_cast<size_t>(lane) * inputs + k * E::PER_WORD,
                            sizeof(Word));
        if (bias == nullptr) return;
        biased_ = true;
        std::copy_n(bias, count, &bias_[panel * LANES]);
    }

    // Call done(first_row, rows, first_panel, panels, tile) for each tile of x W^T + b. Panels
    // that lie `together` come in one tile.
    template <class Done>
    void run(Team& team, const Rows& x, int together, const Done& done) const {
        constexpr int BLOCK_ROWS = Unit<E>::BLOCK_ROWS;
        // Weights that are read once are shared in smaller parts: all threads end sooner.
        const bool once = x.count <= Unit<E>::ROWS;
        const int most = once ? std::max(together, TILE_PANELS / 2) : TILE_PANELS;
        const int groups = (panels_ + most - 1) / most;
        const int blocks = (x.count + BLOCK_ROWS - 1) / BLOCK_ROWS;
        team.run(groups * blocks, [&](int task, int) {
            // Tasks that run side by side share rows and differ in panels.
            const int first_panel = task % groups * most;
            const int panels = std::min(most, panels_ - first_panel);
            const int begin = task / groups * BLOCK_ROWS;
            const int end = std::min(begin + BLOCK_ROWS, x.count);
            const Word* panel[TILE_PANELS];
            for (int p = 0; p < panels; ++p) panel[p] = panel_at(first_panel + p);
            const int height = tile_height(end - begin, Unit<E>::ROWS);
            // Of the next task's panels a part is brought nearer with each tile.
            const int tiles = (end - begin + height - 1) / height;
            const int share = std::min((most + tiles - 1) / tiles, panels);
            Unit<E> unit;
            Tile<Unit<E>::ROWS> tile;
            for (int r = begin; r < end; r += height) {
                const int rows = std::min(height, end - r);
                // Whoever is free takes the next task: most likely this thread.
                const int ahead = std::min(first_panel + most * team.threads() +
                                               (r - begin) / height * share % most,
                                           panels_ - share);
                unit.multiply({x.data + static_cast<size_t>(r) * words_, words_, rows, panel,
                               panels, words_, panel_at(ahead), share, once}, tile);
                if (biased_) add_bias(tile.at, rows, first_panel, panels);
                done(r, rows, first_panel, panels, tile);
            }
        });
    }

  private:
    const Word* panel_at(int panel) const {
        return data_ + static_cast<size_t>(panel) * words_ * LANES;
    }

    void add_bias(float (*tile)[TILE_COLUMNS], int rows, int first_panel, int panels) const {
        for (int i = 0; i < rows; ++i)
            for (int p = 0; p < panels; ++p) {
                float* at = &tile[i][p * LANES];
                const float* bias = &bias_[(first_panel + p) * LANES];
                _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), _mm512_loadu_ps(bias)));
            }
    }

    int panels_;
    int words_;
    Word* data_;
    bool biased_ = false;
    std::vector<float> bias_;
};

}  // namespace tidegate
